"""Language models over HTTP: Anthropic, OpenAI, and servers that speak OpenAI's chat completions.

`Models` knows which model a role or name stands for, asks it, tries again when the service is busy, goes over to a
fallback, and accounts for every call. What differs between the two protocols is in one class each: how a request is
written (`body`), and how an answer is read, whole (`reply`) or as a stream (`collect`, which puts the whole together).

Conversations are the same for both: {"role": "user", "text"}, a Reply's `message`, and {"role": "tools", "results":
[{"id", "name", "text", "is_error"}]}. A Reply's `message` also keeps the provider's own blocks, which its next request
returns untouched; another provider gets the text and the calls.
"""

import email.utils
import hashlib
import itertools
import re
import time
from dataclasses import dataclass, replace

from . import schema as json_schema
from . import web
from .config import ROLES
from .documents import find_json, read_json, to_json
from .errors import (
    ConfigError, DocumentError, ModelUnavailable, ToolError, ToolTimeout, did_you_mean, shorten)
from .tools import printable

#: Tries of one request in all, and seconds before the second and third (spec/plans.md 11.4).
TRIES = 3
WAIT_S = (1.0, 2.0)
#: Longest Retry-After that is waited for, in seconds.
MAX_WAIT_S = 30.0
#: HTTP statuses that pass: too many requests, server errors, and Anthropic's "overloaded".
BUSY = (408, 429, 500, 502, 503, 504, 529)
#: Error types inside an Anthropic stream that pass.
BUSY_TYPES = ("overloaded_error", "rate_limit_error", "api_error")
#: Tokens of an answer where nothing else is configured (Anthropic demands a number).
MAX_TOKENS, MAX_TOKENS_STREAMED = 16_000, 64_000
#: Bytes of one answer.
ANSWER_BYTES = 64 * 1024 * 1024
#: Characters of a service's error that a message quotes.
SHOWN_ERROR = 500
#: Longest tool name that both services take, and what it may be made of.
TOOL_NAME_MAX = 64
_NOT_IN_TOOL_NAMES = re.compile(r"[^A-Za-z0-9_-]")

#: Roles a plan may name; each falls back to `default`.
PLAN_ROLES = tuple(role for role in ROLES if role not in ("embedder", "use_case_solver"))
NO_MODEL = "no model is configured; add [providers.<name>] and [models.default]"

_REPAIR = "Change the document as little as possible, so that it keeps to the schema. Reply with the document alone."
#: The tool that Anthropic's models are made to call for structured output.
_STRUCTURED = "structured_output"


@dataclass(frozen=True)
class Reply:
    """What a model said.

    text: its words. calls: [{"id", "name", "arguments"}], arguments None where they are no JSON object. value: with a
    schema, the JSON it gave, unchecked; None where it gave none. stop: "end", "tools" or "max_tokens".
    message: append it to the messages as it is.
    """

    text: str
    calls: list
    value: object
    stop: str
    message: dict


class Busy(ToolError):
    """The service cannot answer just now. wait_s: how long it asks to be left alone, 0 when it does not say."""

    def __init__(self, message, wait_s=0.0):
        super().__init__(message)
        self.wait_s = wait_s


class Rejected(ToolError):
    """The service will not answer this request. status: HTTP status; text: what it said."""

    def __init__(self, message, status, text):
        super().__init__(message, {"error": message, "status": status}, retryable=False)
        self.status = status
        self.text = text


class Models:
    """The configured models. Used by any thread.

    config: config.Config. opener: web.send or something like it. sleep: seconds → None, in place of a wait that a
    cancelled run ends.
    """

    def __init__(self, config, *, opener=None, sleep=None):
        self._config = config
        self._open = opener or web.send
        self._sleep = sleep
        self._named = set(config.named_models)
        #: provider → its protocol; what one learns about the service is kept for the next call.
        self._services = {}

    def names(self):
        """Return what a plan may say as `model`: the roles, and the named models."""
        return frozenset(PLAN_ROLES) | frozenset(self._named)

    def check(self, name):
        """Raise ModelUnavailable when a role or named model cannot be used; nothing is sent."""
        self._service(self._choice(name))

    def complete(self, name, *, system, messages, context, site=None, tools=(), schema=None, on_text=None,
                 max_tokens=None):
        """Ask a model and return its Reply.

        name: role or named model. tools: tools.Tool the model may call. schema: what the answer is forced into, as far
        as the service can. on_text: called with every piece of text as it comes; once it was called, the request is
        not repeated. site: where the call is accounted, by default the context's place.
        ToolError when the service fails or refuses, ToolTimeout, ModelUnavailable, Cancelled.
        """
        choice = self._choice(name)
        telling = _Telling(on_text) if on_text else None
        request = _Request(system, messages, tools, schema, telling, max_tokens)
        site = site or _site(context, name)
        try:
            return self._ask(choice, request, context, site)
        except _PASSING as error:
            failure = error
        for each in choice.fallbacks:
            context.remaining()  # raises when the run has no time left
            if request.was_told:
                break
            context.tell("warning", text=f"{failure.message}; {each.provider} {each.model} is asked instead")
            if each.temperature is None:
                each = replace(each, temperature=choice.temperature)
            try:
                return self._ask(each, request, context, site)
            except _PASSING as error:
                failure = error
            except ModelUnavailable as error:
                context.tell("warning", text=error.message)
        raise failure

    def structured(self, name, *, system, prompt, schema, context, site=None):
        """Ask a model for JSON and return it checked; one repair on the role `repair`. ToolError when that fails too.

        Errors besides as for complete.
        """
        site = site or _site(context, name)
        messages = [{"role": "user", "text": prompt}]
        reply = self.complete(name, system=system, messages=messages, context=context, site=site, schema=schema)
        trouble = _trouble(reply, schema)
        if trouble:
            document = reply.text if reply.value is None else to_json(reply.value)
            text = f"The document:\n{document}\n\nThe schema:\n{to_json(schema)}\n\nWhat is wrong: {trouble}"
            reply = self.complete(self._repairer(name), system=_REPAIR, messages=[{"role": "user", "text": text}],
                                  context=context, site=site, schema=schema)
            trouble = _trouble(reply, schema)
        if trouble:
            raise ToolError(f"the model did not keep to the schema, even after a repair: {trouble}")
        return reply.value

    def _repairer(self, name):
        """Return the role repair, or the model itself where no such role can be used."""
        try:
            self.check("repair")
        except ModelUnavailable:
            return name
        return "repair"

    # Which model

    def _choice(self, name):
        models = self._config.models
        if name in models:
            return models[name]
        if name in PLAN_ROLES:
            if "default" in models:
                return models["default"]
            raise ModelUnavailable(f"no model is configured for {name}: add [models.{name}] or [models.default], and"
                                   " its [providers.<name>]")
        names = sorted(self.names())
        text = f"there is no model {shorten(str(name), 80)!r}; {did_you_mean(name, names)}"
        raise ModelUnavailable(text, models=names)

    def _service(self, choice):
        """Return the protocol object of a choice's provider. ModelUnavailable."""
        name = choice.provider
        try:
            self._config.usable(f"providers.{name}")
        except ConfigError as error:
            raise ModelUnavailable(error.message, **error.details) from None
        if name not in self._services:
            self._services[name] = _service_of(self._config.providers[name])
        return self._services[name]

    # One model

    def _ask(self, choice, request, context, site):
        """Ask one model, again while it is busy and nothing was told. One of _PASSING, ToolError, Cancelled."""
        service = self._service(choice)
        for attempt in itertools.count(1):
            try:
                return self._adapted(service, choice, request, context, site)
            except _PASSING as error:
                context.remaining()  # raises when it is the run's time that has passed
                if attempt == TRIES or request.was_told or not error.retryable:
                    raise
                self._wait(max(WAIT_S[attempt - 1], getattr(error, "wait_s", 0.0)), context)

    def _adapted(self, service, choice, request, context, site):
        """Ask once, and again in a plainer way where the service does not know what was asked of it."""
        while True:
            try:
                reply = self._once(service, choice, request, context, site)
            except Rejected as error:
                request = service.plainer(choice, request, error)
                if request is None:
                    raise
            else:
                service.learn(choice, request)
                return reply

    def _once(self, service, choice, request, context, site):
        started = time.monotonic()
        limit = context.remaining(service.provider.timeout_s)
        path, headers, body = service.request(choice, request)
        with self._open("POST", service.base + path, cancel=context.cancel, limit_s=limit, headers=headers,
                        body=to_json(body).encode()) as response:
            if response.status >= 400:
                raise _refusal(service, choice, response)
            if request.on_text is not None and response.media_type == "text/event-stream":
                answer = service.collect(response.events(), request.on_text)
            else:
                answer = _json_of(service, response)
        reply, tokens = service.reply(answer, request)
        if request.on_text is not None and response.media_type != "text/event-stream" and reply.text:
            request.on_text(reply.text)  # a service that does not stream
        context.ledger.add(site, choice.provider, choice.model, tokens)
        context.tell("llm_call", site=site, provider=choice.provider, model=choice.model, tokens=tokens,
                     elapsed_s=time.monotonic() - started)
        return reply

    def _wait(self, seconds, context):
        if self._sleep is not None:
            self._sleep(seconds)
        elif context.deadline is not None and context.deadline - time.monotonic() < seconds:
            raise ToolTimeout("the model's service is busy, and the time limit passes before it may be asked again")
        elif context.cancel.wait(seconds):
            context.cancel.check()


#: Failures that may be over a moment later, or elsewhere.
_PASSING = (Busy, web.NetworkError, ToolTimeout)


class _Telling:
    """Hands on the pieces of a streamed answer, and knows whether there were any."""

    def __init__(self, on_text):
        self._on_text = on_text
        self.was_used = False

    def __call__(self, text):
        self.was_used = True
        self._on_text(text)


@dataclass(frozen=True)
class _Request:
    """What `complete` was asked, without which model it goes to.

    no_temperature, no_schema: leave out what the model has turned out not to take.
    """

    system: str
    messages: list
    tools: tuple
    schema: dict | None
    on_text: _Telling | None
    max_tokens: int | None
    no_temperature: bool = False
    no_schema: bool = False

    @property
    def was_told(self):
        """Whether a part of the answer has been shown already, so that it must not be begun again."""
        return self.on_text is not None and self.on_text.was_used


def _site(context, name):
    """Return where a call is accounted: the step's path after the plans that called its plan, else the role."""
    return "/".join([*context.stack[1:], context.path]) if context.path else name


def _trouble(reply, schema):
    """Return what is wrong with a structured reply, "" when nothing is."""
    if reply.value is None:
        return "it is no JSON"
    return "; ".join(map(str, json_schema.problems(reply.value, schema)))


def _refusal(service, choice, response):
    """Return the error for an HTTP status of 400 or more."""
    text = response.text(response.read(ANSWER_BYTES))
    said = shorten(printable(_error_text(text)), SHOWN_ERROR)
    message = f"{service.provider.name} ({choice.model}) answered with HTTP status {response.status}: {said}"
    if response.status in BUSY:
        return Busy(message, _retry_after(response.headers.get("retry-after", "")))
    if response.status in (401, 403):
        message += f"; check api_key of [providers.{service.provider.name}]"
    return Rejected(message, response.status, said)


def _error_text(text):
    """Return the sentence inside an error body; both protocols put it at error.message."""
    try:
        error = read_json(text)["error"]
        return error["message"] if isinstance(error, dict) else str(error)
    except (DocumentError, KeyError, TypeError, IndexError):
        return " ".join(text.split()) or "no explanation"


def _retry_after(text):
    """Return the seconds a Retry-After header asks for, given as seconds or as a date, at most MAX_WAIT_S."""
    try:
        seconds = float(text) if text.strip() else 0.0
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), MAX_WAIT_S) if seconds == seconds else 0.0


def _json_of(service, response):
    body = response.read(ANSWER_BYTES)
    try:
        answer = read_json(body, f"the answer of {service.provider.name}")
    except DocumentError as error:
        raise ToolError(error.message) from None
    if not isinstance(answer, dict):
        raise ToolError(f"the answer of {service.provider.name} is no object")
    return answer


def _event_json(event, provider):
    try:
        value = read_json(event.data, f"an event of {provider.name}")
    except DocumentError as error:
        raise ToolError(error.message) from None
    return value if isinstance(value, dict) else {}


def _list(value):
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _dict(value):
    return value if isinstance(value, dict) else {}


def _count(value):
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


class _ToolNames:
    """Names of tools as services take them, and back: MCP allows more characters and greater lengths."""

    def __init__(self, tools):
        self.sent = {}
        self._real = {}
        for tool in tools:
            name = _NOT_IN_TOOL_NAMES.sub("_", tool.name)
            if name != tool.name or len(name) > TOOL_NAME_MAX:
                mark = hashlib.sha256(tool.name.encode("utf-8", "replace")).hexdigest()[:8]
                name = f"{name[:TOOL_NAME_MAX - 9]}_{mark}"
            self.sent[tool.name] = name
            self._real[name] = tool.name

    def real(self, name):
        return self._real.get(name, name)

    def send(self, name):
        return self.sent.get(name, name)


def _is_object(schema):
    return isinstance(schema, dict) and (schema.get("type") == "object" or (
        "type" not in schema and "properties" in schema))


def _wrapped(schema):
    """Return the schema of an object: services force objects only, so any other value goes under `value`."""
    if _is_object(schema):
        return {"type": "object", **schema}
    return {"type": "object", "properties": {"value": schema}, "required": ["value"], "additionalProperties": False}


def _unwrapped(value, schema):
    return value if _is_object(schema) or not isinstance(value, dict) else value.get("value")


def _message(text, calls, kind, blocks):
    """Return the assistant's turn as it stands in a conversation; `blocks` only mean something to one `kind`."""
    return {"role": "assistant", "text": text, "calls": calls, "native": {"kind": kind, "blocks": blocks}}


def _native(message, kind):
    native = message.get("native") or {}
    return native.get("blocks") if native.get("kind") == kind else None


# Anthropic ---------------------------------------------------------------------------------------------------------


class _Anthropic:
    """The Messages API, version 2023-06-01."""

    kind = "anthropic"

    def __init__(self, provider):
        self.provider = provider
        self.base = (provider.base_url or "https://api.anthropic.com").rstrip("/")
        #: Models that take no temperature.
        self._without_temperature = set()

    def plainer(self, choice, request, error):
        """Return the request without what the model does not take, None when that cannot be the reason."""
        return _without_temperature(request, error)

    def learn(self, choice, request):
        """Take note of what a request that was answered had to leave out."""
        if request.no_temperature:
            self._without_temperature.add(choice.model)

    def request(self, choice, request):
        """Return (path, headers, body) of a request."""
        names = _ToolNames(request.tools)
        streamed = request.on_text is not None
        body = {
            "model": choice.model,
            "max_tokens": request.max_tokens or choice.max_tokens or (MAX_TOKENS_STREAMED if streamed else MAX_TOKENS),
            "messages": _cached(self._messages(request.messages, names)),
        }
        if request.system:
            body["system"] = [{"type": "text", "text": request.system, "cache_control": {"type": "ephemeral"}}]
        if choice.temperature is not None and not (request.no_temperature or choice.model in self._without_temperature):
            body["temperature"] = choice.temperature
        tools = [
            {"name": names.send(tool.name), "description": tool.description,
             "input_schema": json_schema.inline_refs(tool.input_schema)}
            for tool in request.tools
        ]
        if request.schema is not None:
            tools.append({"name": _STRUCTURED, "description": "Give the answer.",
                          "input_schema": _wrapped(request.schema)})
            body["tool_choice"] = {"type": "tool", "name": _STRUCTURED}
        if tools:
            body["tools"] = tools
        if streamed:
            body["stream"] = True
        headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
        if self.provider.api_key:
            headers["x-api-key"] = self.provider.api_key
        return "/v1/messages", headers, body

    def _messages(self, messages, names):
        found = []
        for message in messages:
            if message["role"] == "user":
                content = [{"type": "text", "text": message["text"] or "(empty)"}]  # empty text is refused
            elif message["role"] == "tools":
                content = [
                    {"type": "tool_result", "tool_use_id": result["id"], "content": result["text"],
                     "is_error": result["is_error"]}
                    for result in message["results"]
                ]
            else:
                content = _native(message, self.kind) or self._blocks(message, names)
            role = "assistant" if message["role"] == "assistant" else "user"
            if found and found[-1]["role"] == role:  # turns must alternate
                found[-1]["content"] += content
            elif content:
                found.append({"role": role, "content": list(content)})
        return found

    def _blocks(self, message, names):
        text = [{"type": "text", "text": message["text"]}] if message["text"].strip() else []
        return text + [
            {"type": "tool_use", "id": call["id"], "name": names.send(call["name"]), "input": call["arguments"] or {}}
            for call in message["calls"]
        ]

    def collect(self, events, on_text):
        """Put a stream together to what a request without streaming returns. Busy, ToolError, NetworkError."""
        answer, blocks, parts = {"usage": {}}, {}, {}
        for event in events:
            data = _event_json(event, self.provider)
            kind = data.get("type")
            if kind == "message_start":
                answer = {**_dict(data.get("message")), "usage": dict(_dict(_dict(data.get("message")).get("usage")))}
            elif kind == "content_block_start":
                blocks[data.get("index")] = dict(_dict(data.get("content_block")))
            elif kind == "content_block_delta":
                self._grow(blocks.setdefault(data.get("index"), {}), parts, data, on_text)
            elif kind == "message_delta":
                answer.update(_dict(data.get("delta")))
                answer["usage"].update(_dict(data.get("usage")))
            elif kind == "error":
                error = _dict(data.get("error"))
                text = f"{self.provider.name} broke off: {printable(str(error.get('message', 'no explanation')))}"
                raise Busy(text) if error.get("type") in BUSY_TYPES else ToolError(text)
            elif kind == "message_stop":
                break
        else:
            raise web.NetworkError(f"{self.provider.name} ended its stream before the answer was complete")
        for index, pieces in parts.items():
            blocks[index]["input"] = _arguments("".join(pieces))
        return {**answer, "content": [blocks[index] for index in sorted(blocks, key=_count)]}

    @staticmethod
    def _grow(block, parts, data, on_text):
        """Add one delta to a block; pieces of a call's input are kept until its end."""
        delta = _dict(data.get("delta"))
        kind = delta.get("type")
        if kind == "text_delta":
            block["text"] = block.get("text", "") + delta.get("text", "")
            on_text(delta.get("text", ""))
        elif kind == "input_json_delta":
            parts.setdefault(data.get("index"), []).append(delta.get("partial_json", ""))
        elif kind in ("thinking_delta", "signature_delta"):
            key = kind.removesuffix("_delta")
            block[key] = block.get(key, "") + delta.get(key, "")

    def reply(self, answer, request):
        """Return (Reply, tokens) of a whole answer."""
        names = _ToolNames(request.tools)
        blocks = _list(answer.get("content"))
        text = "".join(block.get("text", "") for block in blocks if block.get("type") == "text")
        used = [block for block in blocks if block.get("type") == "tool_use"]
        # An input that was cut off is told to the agent as None, and must not go back to the service like that.
        blocks = [{**block, "input": block.get("input") or {}} if block in used else block for block in blocks]
        value = next((block.get("input") for block in used if block.get("name") == _STRUCTURED), None)
        calls = [
            {"id": block.get("id"), "name": names.real(block.get("name")), "arguments": block.get("input")}
            for block in used if block.get("name") != _STRUCTURED
        ]
        if request.schema is not None:
            value = _unwrapped(value, request.schema) if value is not None else find_json(text)
            blocks = [{"type": "text", "text": to_json(value)}]  # a call without a result must not stay behind
        stop = {"max_tokens": "max_tokens", "tool_use": "tools"}.get(answer.get("stop_reason"), "end")
        usage = _dict(answer.get("usage"))
        tokens = {key: _count(usage.get(key)) for key in (
            "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")}
        stop = "tools" if calls else "end" if stop == "tools" else stop
        return Reply(text, calls, value, stop, _message(text, calls, self.kind, blocks)), tokens


def _cached(messages):
    """Mark the end of the last message, so that the next request of the conversation finds all of it in the cache."""
    if messages:
        last = messages[-1]["content"]
        last[-1] = {**last[-1], "cache_control": {"type": "ephemeral"}}
    return messages


def _without_temperature(request, error):
    """Return the request without temperature if that is what a 400 complains about, else None."""
    is_it = error.status == 400 and "temperature" in error.text.lower()
    return replace(request, no_temperature=True) if is_it and not request.no_temperature else None


def _arguments(text):
    """Return the arguments of a call; None when they are no JSON object."""
    try:
        value = read_json(text) if text.strip() else {}
    except DocumentError:
        return None
    return value if isinstance(value, dict) else None


# OpenAI ------------------------------------------------------------------------------------------------------------


class _OpenAI:
    """Chat completions, of OpenAI and of the many servers that speak them."""

    kind = "openai"

    def __init__(self, provider):
        self.provider = provider
        self.base = (provider.base_url or "https://api.openai.com/v1").rstrip("/")
        self._without_temperature = set()
        #: Models that do not take a schema as response_format.
        self._without_schema = set()

    def plainer(self, choice, request, error):
        """Return the request without what the model does not take, None when that cannot be the reason."""
        changed = _without_temperature(request, error)
        has_schema = request.schema is not None and not (request.no_schema or choice.model in self._without_schema)
        if changed is None and has_schema and error.status not in (401, 403):
            changed = replace(request, no_schema=True)
        return changed

    def learn(self, choice, request):
        """Take note of what a request that was answered had to leave out."""
        if request.no_temperature:
            self._without_temperature.add(choice.model)
        if request.no_schema:
            self._without_schema.add(choice.model)

    def request(self, choice, request):
        """Return (path, headers, body) of a request."""
        names = _ToolNames(request.tools)
        system = request.system
        body = {"model": choice.model}
        if request.schema is not None:
            if request.no_schema or choice.model in self._without_schema:
                body["response_format"] = {"type": "json_object"}
                system = f"{system}\n\nReply with JSON alone that keeps to this JSON Schema:\n" \
                         f"{to_json(_wrapped(request.schema))}".strip()
            else:
                wanted = _wrapped(request.schema)
                wanted = {"name": "answer", "schema": wanted, "strict": _is_strict(wanted)}
                body["response_format"] = {"type": "json_schema", "json_schema": wanted}
        body["messages"] = [{"role": "system", "content": system}] if system else []
        for message in request.messages:
            body["messages"] += self._message(message, names)
        if choice.temperature is not None and not (request.no_temperature or choice.model in self._without_temperature):
            body["temperature"] = choice.temperature
        limit = request.max_tokens or choice.max_tokens
        if limit:  # OpenAI's newer models refuse the older name, and other servers do not know the newer one
            body["max_completion_tokens" if self.provider.type == "openai" else "max_tokens"] = limit
        if request.tools and request.schema is None:
            body["tools"] = [
                {"type": "function", "function": {
                    "name": names.send(tool.name), "description": tool.description,
                    "parameters": json_schema.inline_refs(tool.input_schema)}}
                for tool in request.tools
            ]
        if request.on_text is not None:
            body.update(stream=True, stream_options={"include_usage": True})
        headers = {"Content-Type": "application/json"}
        if self.provider.api_key:
            headers["Authorization"] = f"Bearer {self.provider.api_key}"
        return "/chat/completions", headers, body

    def _message(self, message, names):
        if message["role"] == "user":
            return [{"role": "user", "content": message["text"]}]
        if message["role"] == "tools":
            return [{"role": "tool", "tool_call_id": result["id"], "content": result["text"]}
                    for result in message["results"]]
        calls = [
            {"id": call["id"], "type": "function", "function": {
                "name": names.send(call["name"]), "arguments": to_json(call["arguments"] or {})}}
            for call in message["calls"]
        ]
        return [{"role": "assistant", "content": message["text"] or None, **({"tool_calls": calls} if calls else {})}]

    def collect(self, events, on_text):
        """Put a stream together to what a request without streaming returns. ToolError, NetworkError."""
        message, calls, answer, ended = {"content": ""}, {}, {"usage": {}}, False
        for event in events:
            if event.data.strip() == "[DONE]":
                ended = True
                break
            data = _event_json(event, self.provider)
            if "error" in data:
                text = printable(_error_text(event.data))
                raise ToolError(f"{self.provider.name} broke off: {shorten(text, SHOWN_ERROR)}")
            if isinstance(data.get("usage"), dict):
                answer["usage"] = data["usage"]
            for choice in _list(data.get("choices"))[:1]:
                delta = _dict(choice.get("delta"))
                if isinstance(delta.get("content"), str) and delta["content"]:
                    message["content"] += delta["content"]
                    on_text(delta["content"])
                for part in _list(delta.get("tool_calls")):
                    self._grow(calls, part)
                ended = ended or choice.get("finish_reason") is not None
                answer["finish_reason"] = choice.get("finish_reason") or answer.get("finish_reason")
        if not ended:
            raise web.NetworkError(f"{self.provider.name} ended its stream before the answer was complete")
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
        return {"choices": [{"message": message, "finish_reason": answer.get("finish_reason")}],
                "usage": answer["usage"]}

    @staticmethod
    def _grow(calls, part):
        call = calls.setdefault(_count(part.get("index")), {"id": "", "function": {"name": "", "arguments": ""}})
        call["id"] = part.get("id") or call["id"]
        function = _dict(part.get("function"))
        for key in ("name", "arguments"):
            call["function"][key] += function.get(key) or ""

    def reply(self, answer, request):
        """Return (Reply, tokens) of a whole answer. ToolError when it holds no message."""
        choice = next(iter(_list(answer.get("choices"))), None)
        if choice is None:
            raise ToolError(f"the answer of {self.provider.name} holds no message")
        names, message = _ToolNames(request.tools), _dict(choice.get("message"))
        text = message.get("content") if isinstance(message.get("content"), str) else ""
        text = text or (message.get("refusal") if isinstance(message.get("refusal"), str) else "")
        calls = [
            {"id": call.get("id"), "name": names.real(_dict(call.get("function")).get("name")),
             "arguments": _arguments(str(_dict(call.get("function")).get("arguments") or ""))}
            for call in _list(message.get("tool_calls"))
        ]
        value = _unwrapped(find_json(text), request.schema) if request.schema is not None else None
        stop = "tools" if calls else "max_tokens" if choice.get("finish_reason") == "length" else "end"
        usage = _dict(answer.get("usage"))
        cached = _count(_dict(usage.get("prompt_tokens_details")).get("cached_tokens"))
        tokens = {
            "input_tokens": max(_count(usage.get("prompt_tokens")) - cached, 0),
            "output_tokens": _count(usage.get("completion_tokens")),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
        }
        return Reply(text, calls, value, stop, _message(text, calls, self.kind, None)), tokens


def _is_strict(schema):
    """Say whether OpenAI can hold a model to a schema to the letter: it leaves nothing open (structured outputs)."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties", {})
    if (schema.get("type") == "object" or properties) and not (
            schema.get("additionalProperties") is False and set(schema.get("required", ())) == set(properties)):
        return False
    return all(map(_is_strict, schema.values()))


def _service_of(provider):
    """Return the protocol object of a provider. ModelUnavailable for one that cannot be used."""
    if provider.type == "anthropic":
        return _Anthropic(provider)
    if provider.type == "openai":
        return _OpenAI(provider)
    if provider.type == "openai_compat":
        if not provider.base_url:
            path = f"providers.{provider.name}.base_url"
            raise ModelUnavailable(f"[providers.{provider.name}] of type openai_compat needs a base_url", path=path)
        return _OpenAI(provider)
    raise ModelUnavailable(f"[providers.{provider.name}]: the type {provider.type} cannot be used by this program",
                           path=f"providers.{provider.name}.type")
