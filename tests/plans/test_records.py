"""Usage, the journal, and run records: what is written, what is hidden, what survives a crash."""

import json
import os
import stat
import threading

import pytest

from graphlib_plans import documents, records
from graphlib_plans.errors import BadArgument

NOW = 1_796_162_001.25  # 2026-12-01 …, any moment will do
PLAN = documents.to_plan({"identifier": "p", "name": "P", "description": "", "steps": []})


def step_line(key, result=1, **fields):
    return {
        "type": "step",
        "key": key,
        "digest": "d",
        "stack": ["p"],
        "path": key,
        "tool": "t__x",
        "result": result,
        **fields,
    }


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "data" / "runs"


@pytest.fixture
def create(directory):
    """create(arguments, **options) -> an open Record."""
    return lambda arguments=None, **options: records.create(directory, PLAN, arguments or {}, now=NOW, **options)


def lines_of(record):
    return [json.loads(line) for line in record.path.read_text("utf-8").splitlines()]


# Usage -------------------------------------------------------------------------------------------------------------


def test_no_call_is_no_report():
    ledger = records.UsageLedger()
    assert (ledger.report(), ledger.summary()) == (None, "")


def test_usage_is_added_up_by_place_and_by_model():
    ledger = records.UsageLedger({"big": {"input": 10, "output": 20}})
    ledger.add("E1", "a", "small", {"input_tokens": 100, "output_tokens": 5})
    ledger.add(
        "E2", "a", "big", {"input_tokens": 1_000_000, "output_tokens": 500_000, "cache_read_input_tokens": 1_000_000}
    )
    ledger.add("E1", "a", "big", {"output_tokens": 1, "cache_creation_input_tokens": 1_000_000})
    report = ledger.report()
    assert (report["calls"], report["output_tokens"]) == (3, 500_006)
    assert report["cost_usd"] == pytest.approx(10 + 10 + 1 + 12.5 + 0.00002)
    assert [(each["path"], each["calls"]) for each in report["by_step"]] == [("E2", 1), ("E1", 2)]
    assert [(each["model"], "cost_usd" in each) for each in report["by_model"]] == [("big", True), ("small", False)]


def test_given_cache_prices_win():
    price = {"input": 10, "output": 0, "cache_write": 1, "cache_read": 2}
    ledger = records.UsageLedger({"m": price})
    ledger.add("E1", "a", "m", {"cache_creation_input_tokens": 1_000_000, "cache_read_input_tokens": 1_000_000})
    assert ledger.report()["cost_usd"] == 3


@pytest.mark.parametrize(
    ("tokens", "pricing", "line"),
    [
        ({"input_tokens": 999, "output_tokens": 12}, {}, "1 call · 999 in / 12 out"),
        ({"input_tokens": 1499, "output_tokens": 2_345_678}, {}, "1 call · 1k in / 2.3M out"),
        ({"input_tokens": 10, "cache_read_input_tokens": 5000}, {}, "1 call · 5k in / 0 out (5k cached)"),
        ({"input_tokens": 1_000_000}, {"m": {"input": 1.239, "output": 1}}, "1 call · 1.0M in / 0 out · $1.24"),
    ],
)
def test_the_summary_is_one_line(tokens, pricing, line):
    ledger = records.UsageLedger(pricing)
    ledger.add("E1", "a", "m", tokens)
    assert ledger.summary() == line


def test_ten_threads_add_to_one_ledger():
    ledger = records.UsageLedger()
    adding = [
        threading.Thread(target=lambda: [ledger.add("E", "a", "m", {"input_tokens": 1}) for _ in range(500)])
        for _ in range(10)
    ]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join()
    assert ledger.report()["input_tokens"] == 5000


# Digests, the journal ----------------------------------------------------------------------------------------------


def test_digests_depend_on_the_value_and_not_on_the_order_of_keys():
    assert records.digest({"a": 1, "b": [2]}) == records.digest({"b": [2], "a": 1})
    assert len({records.digest(value) for value in (1, "1", True, None, [1], {"a": 1}, "\ud800")}) == 7


def test_a_journal_recalls_what_has_the_same_digest():
    journal = records.Journal(None, {"E1": {"digest": "d", "result": 1}})
    assert journal.recall("E1", "d") == {"digest": "d", "result": 1}
    assert journal.recall("E1", "other") is None and journal.recall("E2", "d") is None
    assert journal.active and not records.Journal().active


# Writing -----------------------------------------------------------------------------------------------------------


def test_a_record_is_private_and_starts_with_what_is_run(create, directory):
    record = create({"n": 9007199254740993})
    assert stat.S_IMODE(os.stat(record.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    header = lines_of(record)[0]
    assert header == {
        "type": "run",
        "format": 1,
        "run": record.run,
        "plan": "p",
        "document": PLAN.document,
        "arguments": {"n": 9007199254740993},
        "started": NOW,
    }
    record.close()


def test_names_of_runs_sort_by_age():
    early, late = records.new_run_id(NOW), records.new_run_id(NOW + 1)
    assert early[:-5] < late[:-5] and set(early) <= set("0123456789abcdef-")


def test_a_line_is_with_the_system_when_write_returns(create):
    record = create()
    record.write(step_line("E1"))
    assert lines_of(record)[-1]["key"] == "E1"
    record.close()


def test_lines_of_many_threads_do_not_mix(create):
    record = create()
    text = "x" * 20_000
    writing = [
        threading.Thread(target=lambda n=n: [record.write(step_line(f"{n}.{i}", text)) for i in range(20)])
        for n in range(8)
    ]
    for thread in writing:
        thread.start()
    for thread in writing:
        thread.join()
    record.close()
    assert len({line["key"] for line in lines_of(record)[1:]}) == 160


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("token s3cr3t!", "token [hidden]"),
        ({"s3cr3t!": ["a", {"b": "s3cr3t!s3cr3t!"}]}, {"[hidden]": ["a", {"b": "[hidden][hidden]"}]}),
        ('quote " and \\ back', "[hidden]"),
        (12345678, "[hidden]"),
        ("Grüße", "[hidden]"),
    ],
)
def test_secrets_are_never_written(create, value, written):
    secrets = ["s3cr3t!", 'quote " and \\ back', "12345678", "Grüße"]
    record = create(secrets=secrets)
    record.write(step_line("E1", value))
    record.close()
    line = lines_of(record)[-1]
    assert line["result"] == written and line["redacted"] is True
    data = record.path.read_text("utf-8")
    assert not any(secret in data or json.dumps(secret)[1:-1] in data for secret in secrets)


def test_a_secret_that_looks_like_our_own_words_hides_only_values(create):
    record = create(secrets=["step", "p"])
    record.write(step_line("E1", "step"))
    record.close()
    assert [line["type"] for line in lines_of(record)] == ["run", "step"]


def test_a_result_that_is_no_json_is_left_out_and_told(create):
    record = create()
    record.write(step_line("E1", float("nan")))
    record.write(step_line("E2"))
    record.close()
    assert [line.get("key") for line in lines_of(record)] == [None, "E2"]
    assert "cannot be written" in record.trouble


def test_a_full_disk_ends_the_record_and_not_the_run(create, monkeypatch):
    record = create()

    def full(descriptor, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.os, "write", full)
    record.write(step_line("E1"))
    record.write(step_line("E2"))
    monkeypatch.undo()
    assert "No space left" in record.trouble
    record.close()


def test_a_run_that_never_began_leaves_no_record(create, directory):
    create().discard()
    assert os.listdir(directory) == []


def test_the_oldest_records_go_and_running_ones_stay(create, directory):
    running = create(keep=3)
    for _ in range(5):
        create(keep=3).close()
    names = os.listdir(directory)
    assert running.path.name in names and len(names) <= 4
    running.close()


# Reopening ---------------------------------------------------------------------------------------------------------


def reopen(directory, run, **options):
    return records.reopen(directory, run, now=NOW + 60, **options)


def test_reopening_gives_what_is_finished(create, directory):
    record = create({"a": 1})
    record.write(step_line("E1"))
    record.write({**step_line("E2"), "error": {"kind": "step_failed"}, "result": None})
    record.write({"type": "model", "key": "E3/verdict", "digest": "d", "value": {"verdict": True}})
    record.write({"type": "answer", "key": "E4/answer", "digest": "d", "answer": {"go": True}})
    failed = {key: value for key, value in step_line("E5").items() if key != "result"}
    record.write({**failed, "error": {"kind": "step_failed", "message": "no", "payload": None}})
    record.close()
    again, header, finished = reopen(directory, record.run)
    assert header["arguments"] == {"a": 1}
    assert set(finished) == {"E1", "E2", "E3/verdict", "E4/answer"}
    assert lines_of(again)[-1] == {"type": "resume", "at": NOW + 60}
    again.close()


def test_a_line_with_a_hidden_secret_is_not_finished(create, directory):
    record = create(secrets=["s3cr3t!"])
    record.write(step_line("E1", "s3cr3t!"))
    record.close()
    again, _, finished = reopen(directory, record.run)
    assert finished == {}
    again.close()


def test_a_later_failure_of_a_step_counts(create, directory):
    record = create()
    record.write(step_line("E1"))
    failed = {key: value for key, value in step_line("E1").items() if key != "result"}
    record.write({**failed, "error": {}})
    record.close()
    again, _, finished = reopen(directory, record.run)
    assert finished == {}
    again.close()


@pytest.mark.parametrize("tail", [b'{"type":"step","key":"E2","dig', b"\xff\xfe", b"null\n", b"[1]\n", b"{}\n"])
def test_a_torn_or_foreign_last_line_is_ignored(create, directory, tail):
    record = create()
    record.write(step_line("E1"))
    record.close()
    with open(record.path, "ab") as stream:
        stream.write(tail)
    again, _, finished = reopen(directory, record.run)
    again.write(step_line("E3"))
    again.close()
    assert set(finished) == {"E1"}
    _, _, finished = third = reopen(directory, record.run)
    assert set(finished) == {"E1", "E3"}
    third[0].close()


def test_what_cannot_be_reopened(create, directory):
    record = create()
    with pytest.raises(BadArgument, match="still running"):
        reopen(directory, record.run)
    record.finish({"kind": "ran"}, NOW)
    with pytest.raises(BadArgument, match="ended well"):
        reopen(directory, record.run)
    for run in ("20200101-000000-0000", "../../etc/passwd", "", "x" * 300):
        with pytest.raises(BadArgument, match="there is no run"):
            reopen(directory, run)


def test_a_run_whose_input_held_a_secret_cannot_be_resumed(create, directory):
    record = create({"token": "s3cr3t!"}, secrets=["s3cr3t!"])
    record.close()
    with pytest.raises(BadArgument, match="secret"):
        reopen(directory, record.run)
    assert records.list_runs(directory)[0].status == "interrupted"


# Listing -----------------------------------------------------------------------------------------------------------


def test_listing_tells_how_every_run_stands(create, directory):
    ran, failed, broken, running = create(), create(), create(), create()
    ran.write(step_line("E1"))
    ran.finish({"kind": "ran", "steps_executed": 7}, NOW + 1)
    failed.finish({"kind": "step_failed", "error": "no", "steps_executed": 0}, NOW + 1)
    broken.write(step_line("E1"))
    broken.close()
    (directory / "stranger.jsonl").write_text("hello\n")
    (directory / "empty.jsonl").write_text("")
    found = {each.run: each for each in records.list_runs(directory)}
    assert {run: each.status for run, each in found.items()} == {
        ran.run: "ran",
        failed.run: "step_failed",
        broken.run: "interrupted",
        running.run: "running",
    }
    assert (found[ran.run].steps, found[broken.run].steps) == (7, 1)
    assert found[failed.run].error == "no"
    assert [each.run for each in records.list_runs(directory)] == sorted(found, reverse=True)
    running.close()


def test_listing_where_there_are_no_runs(tmp_path):
    assert records.list_runs(tmp_path / "absent") == []


def test_reading_one_run(create, directory):
    record = create({"a": 1})
    record.write(step_line("E1", {"x": 1}))
    record.finish({"kind": "ran", "output": {"x": 1}}, NOW + 5)
    run = records.read_run(directory, record.run)
    assert (run["plan"], run["status"], run["started"], run["ended"]) == ("p", "ran", NOW, NOW + 5)
    assert run["arguments"] == {"a": 1} and run["outcome"] == {"kind": "ran", "output": {"x": 1}}
    assert [step["result"] for step in run["steps"]] == [{"x": 1}]
