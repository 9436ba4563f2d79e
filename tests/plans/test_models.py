"""Models over HTTP, against a local server that speaks both protocols as their documentation shows them."""

import contextlib
import json
import threading
import time
from email.utils import formatdate

import pytest

from graphlib_plans import config, models
from graphlib_plans.errors import Cancelled, ModelUnavailable, ToolError, ToolTimeout
from graphlib_plans.tools import CancelToken, Tool, quiet_context
from tests.plans.http_double import LIMIT_S, Service

KINDS = ("anthropic", "openai", "openai_compat")
SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


def tool(name, schema=None):
    return Tool(name, "t", f"the tool {name}", schema or {"type": "object"}, None)


# What the two services answer --------------------------------------------------------------------------------------


def anthropic_answer(text="", calls=(), stop=None, usage=None):
    content = [{"type": "text", "text": text}] if text else []
    content += [{"type": "tool_use", "id": f"c{n}", "name": name, "input": value} for n, (name, value) in
                enumerate(calls)]
    return {"type": "message", "role": "assistant", "content": content,
            "stop_reason": stop or ("tool_use" if calls else "end_turn"),
            "usage": usage or {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 3,
                               "cache_creation_input_tokens": 2}}


def openai_answer(text="", calls=(), stop=None, usage=None):
    message = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(value)}}
            for n, (name, value) in enumerate(calls)]
    return {"choices": [{"index": 0, "message": message, "finish_reason": stop or ("tool_calls" if calls else "stop")}],
            "usage": usage or {"prompt_tokens": 13, "completion_tokens": 5,
                               "prompt_tokens_details": {"cached_tokens": 3}}}


def answer(kind, *args, **kwargs):
    return (anthropic_answer if kind == "anthropic" else openai_answer)(*args, **kwargs)


def structured(kind, value):
    if kind == "anthropic":
        return anthropic_answer(calls=[("structured_output", value)])
    return openai_answer(json.dumps(value))


def stream_text(kind, request, pieces, end=True):
    """Stream an answer as the services do."""
    request.stream()
    if kind == "anthropic":
        request.event({"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 7,
                                                                                     "output_tokens": 1}}})
        request.event({"type": "ping"})
        request.event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        for piece in pieces:
            request.event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}})
        if end:
            request.event({"type": "content_block_stop", "index": 0})
            request.event({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                           "usage": {"output_tokens": 9}})
            request.event({"type": "message_stop"})
    else:
        for piece in ["", *pieces]:
            request.event({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
        if end:
            request.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            request.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}})
            request.event("[DONE]")
    if end:
        request.end()


class World:
    """Models whose service answers what `answers` holds, one after the other; the last one again and again.

    An answer is a function of the request, a body for status 200, or (status, body) or (status, body, headers).
    """

    def __init__(self, kind, *answers, **options):
        self.kind, self.answers, self.events, self.waits = kind, list(answers), [], []
        self.service = Service(self.handle)
        self.models = models.Models(self.config(**options), sleep=self.waits.append)
        self.context = quiet_context(emit=self.events.append, path="E1", stack=("root", "inner"))

    def config(self, roles=("default",), fallbacks=(), deferred=None, **choice):
        provider = config.Provider("p", self.kind, "secret-key", self.service.url, timeout_s=LIMIT_S)
        other = config.Provider("q", self.kind, None, self.service.url + "/other", timeout_s=LIMIT_S)
        chosen = config.ModelChoice("p", "m", **choice, fallbacks=tuple(fallbacks))
        made = {role: chosen for role in roles}
        return make_config({"p": provider, "q": other}, made, deferred)

    def handle(self, request):
        reply = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(reply):
            reply(request)
        elif isinstance(reply, tuple):
            status, body, *headers = reply
            request.reply(status, body, **(headers[0] if headers else {}))
        else:
            request.reply(200, reply)

    @property
    def bodies(self):
        return [request.json for request in self.service.requests]

    def complete(self, text="hi", name="chat", **options):
        options.setdefault("system", "be brief")
        options.setdefault("messages", [{"role": "user", "text": text}])
        options.setdefault("context", self.context)
        return self.models.complete(name, **options)

    def structured(self, schema=SCHEMA, **options):
        return self.models.structured("chat", system="s", prompt="p", schema=schema, context=self.context, **options)


def make_config(providers, chosen, deferred=None, named=()):
    fields = {field: None for field in config.Config.__dataclass_fields__}
    fields.update(providers=providers, models=chosen, named_models=frozenset(named), deferred=deferred or {})
    return config.Config(**fields)


@pytest.fixture
def world():
    made = []

    def make(*args, **options):
        made.append(World(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.service.close()


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


# Requests ----------------------------------------------------------------------------------------------------------


def test_a_plain_answer(world, kind):
    one = world(kind, answer(kind, "hello"))
    reply = one.complete(site="solver")
    assert (reply.text, reply.calls, reply.value, reply.stop) == ("hello", [], None, "end")
    expected = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 3,
                "cache_creation_input_tokens": 2 if kind == "anthropic" else 0}
    (event,) = one.events
    assert (event["event"], event["site"], event["provider"], event["model"]) == ("llm_call", "solver", "p", "m")
    assert event["tokens"] == expected
    report = one.context.ledger.report()
    assert report["calls"] == 1 and report["by_step"][0]["path"] == "solver"
    assert {key: report[key] for key in expected} == expected


def test_a_call_is_accounted_to_its_step(world, kind):
    one = world(kind, answer(kind, "hello"))
    one.complete()
    assert one.context.ledger.report()["by_step"][0]["path"] == "inner/E1"


def test_the_request_of_anthropic(world):
    one = world("anthropic", anthropic_answer("x"), temperature=0.5)
    one.complete(tools=[tool("a__b", {"properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}})])
    (request,) = one.service.requests
    assert request.path == "/v1/messages"
    assert (request.headers["x-api-key"], request.headers["anthropic-version"]) == ("secret-key", "2023-06-01")
    body = request.json
    assert (body["model"], body["max_tokens"], body["temperature"], body.get("stream")) == ("m", 16000, 0.5, None)
    assert body["system"] == [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
    assert body["messages"] == [{"role": "user", "content": [
        {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}]
    (sent,) = body["tools"]
    assert (sent["name"], sent["input_schema"]["type"]) == ("a__b", "object")
    assert sent["input_schema"]["properties"] == {"x": {"type": "string"}}


@pytest.mark.parametrize("kind, limit", [("openai", "max_completion_tokens"), ("openai_compat", "max_tokens")])
def test_the_request_of_openai(world, kind, limit):
    one = world(kind, openai_answer("x"), temperature=0, max_tokens=100)
    one.complete(tools=[tool("a__b")])
    (request,) = one.service.requests
    assert request.path == "/chat/completions" and request.headers["Authorization"] == "Bearer secret-key"
    body = request.json
    assert (body["model"], body[limit], body["temperature"]) == ("m", 100, 0)
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert body["tools"][0]["function"]["name"] == "a__b"


@pytest.mark.parametrize(
    "choice, asked, sent", [({}, None, 16000), ({"max_tokens": 7}, None, 7), ({"max_tokens": 7}, 9, 9)])
def test_the_limit_of_tokens(world, choice, asked, sent):
    one = world("anthropic", anthropic_answer("x"), **choice)
    one.complete(max_tokens=asked)
    assert one.bodies[0]["max_tokens"] == sent


def test_a_conversation_with_tools(world, kind):
    one = world(kind, answer(kind, "let me see", calls=[("a__x", {"q": 1}), ("a__y", {})]), answer(kind, "done"))
    tools, messages = [tool("a__x"), tool("a__y")], [{"role": "user", "text": "go"}]
    reply = one.complete(messages=messages, tools=tools)
    assert reply.stop == "tools" and reply.text == "let me see"
    assert reply.calls == [
        {"id": "c0", "name": "a__x", "arguments": {"q": 1}}, {"id": "c1", "name": "a__y", "arguments": {}}]
    messages += [json.loads(json.dumps(reply.message)), {"role": "tools", "results": [
        {"id": "c0", "name": "a__x", "text": "1", "is_error": False},
        {"id": "c1", "name": "a__y", "text": "bad", "is_error": True}]}, {"role": "user", "text": "hurry"}]
    assert one.complete(messages=messages, tools=tools).text == "done"
    sent = one.bodies[1]["messages"]
    if kind == "anthropic":
        _, assistant, user = sent
        assert [block["type"] for block in assistant["content"]] == ["text", "tool_use", "tool_use"]
        first, second, text = user["content"]
        assert first == {"type": "tool_result", "tool_use_id": "c0", "content": "1", "is_error": False}
        assert second["is_error"] is True and text["text"] == "hurry" and "cache_control" in text
    else:
        _, _, assistant, first, second, user = sent
        assert assistant["content"] == "let me see"
        assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"q": 1}
        assert first == {"role": "tool", "tool_call_id": "c0", "content": "1"} and second["tool_call_id"] == "c1"
        assert user == {"role": "user", "content": "hurry"}


def test_thinking_goes_back_untouched(world):
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
              {"type": "tool_use", "id": "c0", "name": "a", "input": {}}]
    one = world("anthropic", {"content": blocks, "stop_reason": "tool_use", "usage": {}}, anthropic_answer("done"))
    reply = one.complete(tools=[tool("a")])
    results = {"role": "tools", "results": [{"id": "c0", "name": "a", "text": "1", "is_error": False}]}
    one.complete(messages=[{"role": "user", "text": "go"}, reply.message, results], tools=[tool("a")])
    assert one.bodies[1]["messages"][1]["content"] == blocks


@pytest.mark.parametrize("name", ["a__" + "x" * 100, "srv__get.thing", "srv__grüße", "srv__a/b c"])
def test_a_tool_name_the_services_refuse_is_sent_in_another_way_and_comes_back(world, kind, name):
    sent = {}

    def reply(request):
        tools = request.json["tools"]
        sent["names"] = [each["name"] if kind == "anthropic" else each["function"]["name"] for each in tools]
        request.reply(200, answer(kind, calls=[(sent["names"][0], {})]))

    one = world(kind, reply)
    reply = one.complete(tools=[tool(name), tool(name + "2")])
    assert reply.calls[0]["name"] == name and len(set(sent["names"])) == 2
    assert all(each.isascii() and len(each) <= 64 and each.replace("_", "").replace("-", "").isalnum()
               for each in sent["names"])


def test_a_conversation_begun_by_the_other_service_goes_on(world):
    first = world("anthropic", anthropic_answer("x", calls=[("a", {"q": 1})]))
    second = world("openai", openai_answer("y"))
    message = first.complete(tools=[tool("a")]).message
    second.complete(messages=[{"role": "user", "text": "go"}, message], tools=[tool("a")])
    assert second.bodies[0]["messages"][-1]["tool_calls"][0]["function"]["name"] == "a"
    back = second.complete().message
    first.complete(messages=[{"role": "user", "text": "go"}, back, {"role": "user", "text": ""}])
    assert first.bodies[-1]["messages"][1]["content"] == [{"type": "text", "text": "y"}]


def test_arguments_that_are_no_object_are_told(world):
    broken = openai_answer()
    broken["choices"][0]["message"]["tool_calls"] = [
        {"id": "1", "function": {"name": "a", "arguments": '{"q": '}}, {"id": "2", "function": {"name": "a"}}]
    reply = world("openai", broken).complete(tools=[tool("a")])
    assert [call["arguments"] for call in reply.calls] == [None, {}]


@pytest.mark.parametrize("kind, stop", [("anthropic", "max_tokens"), ("openai", "length")])
def test_a_cut_answer_says_so(world, kind, stop):
    assert world(kind, answer(kind, "abc", stop=stop)).complete().stop == "max_tokens"


# Streaming ---------------------------------------------------------------------------------------------------------


def test_a_stream_tells_its_pieces_as_they_come(world, kind):
    second = threading.Event()

    def reply(request):
        stream_text(kind, request, ["one "], end=False)
        assert second.wait(LIMIT_S)
        if kind == "anthropic":
            request.event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "two ü"}})
            request.event(
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}})
            request.event({"type": "message_stop"})
        else:
            request.event({"choices": [{"index": 0, "delta": {"content": "two ü"}, "finish_reason": "stop"}]})
            request.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}})
            request.event("[DONE]")
        request.end()

    told = []

    def on_text(text):
        told.append(text)
        second.set()  # the second piece is sent only once the first has been told

    one = world(kind, reply)
    result = one.complete(on_text=on_text)
    assert told == ["one ", "two ü"] and result.text == "one two ü" and result.stop == "end"
    assert one.events[0]["tokens"]["input_tokens"] == 7 and one.events[0]["tokens"]["output_tokens"] == 9
    assert one.bodies[0]["stream"] is True
    assert one.bodies[0].get("max_tokens") == (64000 if kind == "anthropic" else None)


def test_a_stream_with_calls_and_thinking(world):
    def anthropic(request):
        request.stream()
        for event in [
            {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "h"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "m"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
            {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "c", "name": "a",
                                                                          "input": {}}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"q"'}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ": 12}"}},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
        ]:
            request.event(event, event["type"])
        request.end()

    def openai(request):
        request.stream()
        for delta in [
            {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "a", "arguments": ""}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"q"'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": ": 12}"}}]},
        ]:
            request.event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        request.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
        request.event("[DONE]")
        request.end()

    for kind, reply in (("anthropic", anthropic), ("openai", openai)):
        result = world(kind, reply).complete(tools=[tool("a")], on_text=lambda text: None)
        assert result.calls == [{"id": "c", "name": "a", "arguments": {"q": 12}}] and result.stop == "tools"
        if kind == "anthropic":
            assert result.message["native"]["blocks"][0] == {"type": "thinking", "thinking": "hm", "signature": "s"}


def test_a_service_that_does_not_stream_still_tells(world, kind):
    told = []
    world(kind, answer(kind, "whole")).complete(on_text=told.append)
    assert told == ["whole"]


def cut(kind, pieces):
    def reply(request):
        stream_text(kind, request, pieces, end=False)
        request.close_connection = True  # without the end of the chunks

    return reply


def test_a_stream_that_breaks_before_it_told_anything_is_asked_for_again(world, kind):
    told = []
    one = world(kind, cut(kind, []), lambda request: stream_text(kind, request, ["ok"]))
    assert one.complete(on_text=told.append).text == "ok" and told == ["ok"] and one.waits == [1.0]


def test_a_stream_that_breaks_after_it_told_something_is_a_failure(world, kind):
    told = []
    one = world(kind, cut(kind, ["half"]), fallbacks=[config.ModelChoice("q", "other")])
    with pytest.raises(ToolError, match="broke off"):
        one.complete(on_text=told.append)
    assert told == ["half"] and len(one.bodies) == 1


def test_an_error_inside_a_stream(world):
    def overloaded(request):
        request.stream()
        request.event({"type": "error", "error": {"type": "overloaded_error", "message": "too much"}})
        request.end()

    def invalid(request):
        request.stream()
        request.event({"error": {"message": "bad\x1b thing"}})
        request.end()

    one = world("anthropic", overloaded, lambda request: stream_text("anthropic", request, ["ok"]))
    assert one.complete(on_text=lambda text: None).text == "ok"
    with pytest.raises(ToolError, match=r"bad\\x1b thing"):
        world("openai", invalid).complete(on_text=lambda text: None)


# Trying again ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
def test_a_busy_service_is_asked_again(world, kind, status):
    one = world(kind, (status, {"error": {"message": "busy"}}), (status, ""), answer(kind, "ok"))
    assert one.complete().text == "ok" and one.waits == [1.0, 2.0]
    assert one.context.ledger.report()["calls"] == 1


def test_a_service_that_stays_busy_is_given_up(world, kind):
    one = world(kind, (503, {"error": {"message": "come back later"}}))
    with pytest.raises(ToolError, match=r"p \(m\) answered with HTTP status 503: come back later"):
        one.complete()
    assert len(one.bodies) == 3 and one.waits == [1.0, 2.0]


@pytest.mark.parametrize("header, wait", [
    ("7", 7.0), ("0.1", 1.0), ("900", 30.0), ("nonsense", 1.0), ("nan", 1.0), ("-5", 1.0),
    (formatdate(time.time() + 3600, usegmt=True), 30.0),
], ids=["7", "0.1", "900", "nonsense", "nan", "-5", "an hour from here"])
def test_retry_after_is_kept_to_within_reason(world, header, wait):
    one = world("openai", (429, "", {"Retry_After": header}), openai_answer("ok"))
    one.complete()
    assert one.waits == [wait]


@pytest.mark.parametrize("status, hint", [(400, ""), (401, r"check api_key of \[providers.p\]"), (404, "")])
def test_a_refusal_is_final_and_says_why(world, kind, status, hint):
    one = world(kind, (status, {"error": {"message": "no such model: m"}}))
    with pytest.raises(ToolError, match=f"HTTP status {status}: no such model: m.*{hint}") as caught:
        one.complete()
    assert len(one.bodies) == 1 and not caught.value.retryable and "secret-key" not in str(caught.value.payload)


@pytest.mark.parametrize("body", ["<html>", "[]", '{"choices": []}', '{"choices": 5}'])
def test_an_answer_that_is_none_is_a_failure(world, body):
    with pytest.raises(ToolError):
        world("openai", (200, body)).complete()


def test_a_service_that_is_not_there_is_tried_again(world, kind):
    one = world(kind, answer(kind, "x"))
    one.service.close()
    with pytest.raises(ToolError, match="could not be reached"):
        one.complete()
    assert one.waits == [1.0, 2.0]


def test_a_fallback_is_asked_when_the_first_stays_busy(world, kind):
    def reply(request):
        if request.path.startswith("/other"):
            request.reply(200, answer(kind, "from the other"))
        else:
            request.reply(503, "")

    one = world(kind, reply, temperature=0.5, fallbacks=[config.ModelChoice("q", "m2")])
    assert one.complete().text == "from the other"
    assert (one.bodies[-1]["model"], one.bodies[-1]["temperature"]) == ("m2", 0.5)
    assert [event["event"] for event in one.events] == ["warning", "llm_call"]
    assert one.events[1]["provider"] == "q" and "Authorization" not in one.service.requests[-1].headers


def test_a_fallback_is_not_for_refusals(world, kind):
    one = world(kind, (400, {"error": {"message": "bad"}}), fallbacks=[config.ModelChoice("q", "m2")])
    with pytest.raises(ToolError, match="bad"):
        one.complete()
    assert len(one.bodies) == 1


def test_a_fallback_that_cannot_be_used_does_not_hide_the_failure(world, kind):
    one = world(kind, (503, ""), fallbacks=[config.ModelChoice("q", "m2")],
                deferred={"providers.q": config.Deferred("providers.q.api_key", "Q_KEY")})
    with pytest.raises(ToolError, match=r"p \(m\) answered with HTTP status 503"):
        one.complete()
    assert any("Q_KEY" in event.get("text", "") for event in one.events)


@pytest.mark.parametrize("text", ["temperature is not supported", "`Temperature` deprecated for this model"])
def test_a_model_without_temperature_is_asked_without_from_then_on(world, kind, text):
    one = world(kind, (400, {"error": {"message": text}}), answer(kind, "ok"), temperature=0.2)
    one.complete()
    one.complete()
    assert ["temperature" in body for body in one.bodies] == [True, False, False]


# Time and cancelling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_a_cancel_closes_the_connection(world, kind, streamed):
    arrived, gone, token = threading.Event(), threading.Event(), CancelToken()

    def reply(request):
        if streamed:
            stream_text(kind, request, ["one"], end=False)
        arrived.set()
        request.wait_until_gone()
        gone.set()

    one = world(kind, reply)
    threading.Thread(target=lambda: (arrived.wait(LIMIT_S), token.cancel("enough"))).start()
    with pytest.raises(Cancelled, match="enough"):
        one.complete(context=one.context.with_(cancel=token), on_text=(lambda text: None) if streamed else None)
    assert gone.wait(LIMIT_S)


def test_a_cancel_ends_the_wait_for_the_next_try(world, kind):
    one = world(kind, (503, "", {"Retry_After": "30"}))
    token = CancelToken()
    slow = models.Models(one.config())
    answered = one.handle

    def handle(request):
        answered(request)
        threading.Thread(target=token.cancel).start()

    one.service.handle = handle
    with pytest.raises(Cancelled):
        slow.complete("chat", system="", messages=[{"role": "user", "text": "x"}],
                      context=one.context.with_(cancel=token))
    assert len(one.bodies) == 1


def test_a_deadline_bounds_the_wait_for_an_answer_and_for_the_next_try(world, kind):
    one = world(kind, lambda request: request.wait_until_gone())
    with pytest.raises(ToolTimeout):
        one.complete(context=one.context.with_(deadline=time.monotonic() + 0.3))
    assert one.waits == []
    busy = world(kind, (503, "", {"Retry_After": "30"}))
    patient = models.Models(busy.config())
    with pytest.raises(ToolTimeout, match="busy"):
        patient.complete("chat", system="", messages=[{"role": "user", "text": "x"}],
                         context=busy.context.with_(deadline=time.monotonic() + 10))


# Structured output -------------------------------------------------------------------------------------------------


def test_structured_output_is_forced_in_each_protocol(world, kind):
    one = world(kind, structured(kind, {"n": 12345678901234567890}))
    assert one.structured() == {"n": 12345678901234567890}
    body = one.bodies[0]
    if kind == "anthropic":
        assert body["tool_choice"] == {"type": "tool", "name": "structured_output"}
        assert body["tools"][-1]["input_schema"] == SCHEMA
    else:
        assert body["response_format"]["type"] == "json_schema"
        assert body["response_format"]["json_schema"]["schema"] == SCHEMA
        assert body["response_format"]["json_schema"]["strict"] is False


CLOSED = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize("schema, strict", [
    ({**CLOSED, "required": ["n"], "properties": {"n": {"type": "integer"}}}, True),
    ({**CLOSED, "properties": {"n": {"type": "integer"}}}, False),
    ({**CLOSED, "required": ["n"], "properties": {"n": {"type": "array", "items": {"type": "object"}}}}, False),
    ({**CLOSED, "required": ["n"], "properties": {"n": {"anyOf": [{"type": "null"}, CLOSED]}}}, True),
])
def test_openai_is_held_to_the_letter_only_of_schemas_it_takes(world, schema, strict):
    one = world("openai", openai_answer('{"n": null}'), openai_answer('{"n": 1}'))
    with contextlib.suppress(ToolError):
        one.structured(schema)
    assert one.bodies[0]["response_format"]["json_schema"]["strict"] is strict


def test_one_repair_is_tried(world, kind):
    one = world(kind, structured(kind, {"n": "three"}), structured(kind, {"n": 3}))
    assert one.structured() == {"n": 3}
    asked = json.dumps(one.bodies[1])
    assert "three" in asked and "What is wrong" in asked and len(one.bodies) == 2


@pytest.mark.parametrize("bad", [{"n": "x"}, {}])
def test_a_second_failure_is_final(world, kind, bad):
    one = world(kind, structured(kind, bad))
    with pytest.raises(ToolError, match="did not keep to the schema, even after a repair: .*n"):
        one.structured()
    assert len(one.bodies) == 2


def test_the_repair_goes_to_its_own_role(world):
    one = world("openai", structured("openai", {}), structured("openai", {"n": 1}))
    chosen = {"chat": config.ModelChoice("p", "m"), "repair": config.ModelChoice("p", "fixer")}
    provider = config.Provider("p", "openai", "k", one.service.url)
    one.models = models.Models(make_config({"p": provider}, chosen))
    assert one.structured() == {"n": 1} and [body["model"] for body in one.bodies] == ["m", "fixer"]
    del chosen["repair"]
    one.answers = [structured("openai", {}), structured("openai", {"n": 1})]
    one.models = models.Models(make_config({"p": provider}, chosen))
    assert one.structured() == {"n": 1} and one.bodies[-1]["model"] == "m"


@pytest.mark.parametrize("text", [
    '{"n": 3}', '  {"n": 3}\n', '```json\n{"n": 3}\n```', 'Here:\n```\n{"n": 3}\n```\nDone.', 'It is {"n": 3}, hm.'])
def test_json_is_found_in_what_a_model_says(world, kind, text):
    assert world(kind, answer(kind, text)).structured() == {"n": 3}


@pytest.mark.parametrize("schema, sent, value", [
    ({"type": "array", "items": {"type": "integer"}}, {"value": [1, 2]}, [1, 2]),
    ({"enum": ["a", "b"]}, {"value": "a"}, "a"),
    ({"properties": {"value": {"type": "integer"}}, "required": ["value"]}, {"value": 5}, {"value": 5}),
])
def test_a_value_that_is_no_object_is_wrapped_on_the_way(world, kind, schema, sent, value):
    assert world(kind, structured(kind, sent)).structured(schema) == value


def test_a_service_without_schemas_is_asked_in_words_from_then_on(world):
    one = world("openai_compat", (422, {"error": "response_format: unknown variant"}), structured("openai", {"n": 1}))
    assert one.structured() == {"n": 1} and one.structured() == {"n": 1}
    kinds = [body["response_format"]["type"] for body in one.bodies]
    assert kinds == ["json_schema", "json_object", "json_object"]
    assert '"required":["n"]' in one.bodies[-1]["messages"][0]["content"]


def test_another_refusal_does_not_teach_that_schemas_are_unknown(world):
    too_long = 400, {"error": {"message": "context too long"}}
    one = world("openai", too_long, too_long,
                structured("openai", {"n": 1}))
    with pytest.raises(ToolError, match="context too long"):
        one.structured()
    assert one.structured() == {"n": 1}
    assert [body["response_format"]["type"] for body in one.bodies] == ["json_schema", "json_object", "json_schema"]


# Which model -------------------------------------------------------------------------------------------------------


def lookup(chosen, providers=None, deferred=None, named=()):
    providers = providers or {"p": config.Provider("p", "anthropic", "k")}
    return models.Models(make_config(providers, chosen, deferred, named))


def test_roles_fall_back_to_default_and_named_models_do_not():
    known = lookup({"default": config.ModelChoice("p", "m"), "fast": config.ModelChoice("p", "f")}, named=["fast"])
    assert known.names() == {"default", "chat", "planner", "solver", "repair", "judge", "fast"}
    for name in known.names():
        known.check(name)


@pytest.mark.parametrize("name, sentence", [
    ("judge", r"no model is configured for judge: add \[models.judge\] or \[models.default\]"),
    ("fsat", "there is no model 'fsat'; did you mean 'fast'"),
    ("", "there is no model ''; known: chat"),
])
def test_a_model_that_is_not_there(name, sentence):
    with pytest.raises(ModelUnavailable, match=sentence):
        lookup({"fast": config.ModelChoice("p", "f")}, named=["fast"]).check(name)


def test_a_missing_key_names_variable_and_place():
    known = lookup({"default": config.ModelChoice("p", "m")},
                   deferred={"providers.p": config.Deferred("providers.p.api_key", "P_KEY")})
    with pytest.raises(ModelUnavailable, match=r"providers\.p\.api_key needs the environment variable P_KEY") as caught:
        known.check("chat")
    assert caught.value.details == {"variable": "P_KEY", "path": "providers.p.api_key"}


@pytest.mark.parametrize("provider, sentence", [
    (config.Provider("p", "openai_compat"), "needs a base_url"),
    (config.Provider("p", "bedrock"), "the type bedrock cannot be used"),
])
def test_a_provider_that_cannot_be_used(provider, sentence):
    with pytest.raises(ModelUnavailable, match=sentence):
        lookup({"default": config.ModelChoice("p", "m")}, {"p": provider}).check("chat")
