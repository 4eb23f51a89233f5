"""A job's manifest: what it says, and one sentence with file, line and key for what is wrong."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import docs_tables
import pytest
from jsonschema import Draft202012Validator

from edl.cluster.client.client import job_manifest, manifest_in, read_job_manifest
from edl.cluster.manifest import (
    MAX_BYTES,
    BatchRange,
    JobManifest,
    PolicyHints,
    checked_manifest,
    decoded_manifest,
    manifest_schema,
    parse_manifest,
)
from edl.errors import ManifestError, UsageError
from edl.spec import JobSettings, Sizes

ROOT = Path(__file__).resolve().parents[2]
NAME, COMMAND, MIN, MAX = "name: digits", "command: [python, train.py]", "min: 1", "max: 4"
SHORTEST = f"{NAME}\n{COMMAND}\n{MIN}\n{MAX}\n"


def parsed(text: str) -> JobManifest:
    return parse_manifest(text, "job.yaml")


def refused(text: str) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        parsed(text)
    assert "\n" not in str(caught.value)
    return caught.value


def test_the_shortest() -> None:
    manifest = parsed(SHORTEST)
    assert manifest == JobManifest("digits", ("python", "train.py"), 1, 4)
    assert manifest.requested_np == 4
    assert manifest.allowed_sizes == Sizes(1, 4)
    spec = manifest.job_spec("auto")
    assert (spec.command, spec.np, spec.sizes) == (manifest.command, 4, Sizes(1, 4))
    assert spec.settings.resume == "auto"


def long_one() -> str:
    page = (ROOT / "docs" / "reference" / "manifest.md").read_text(encoding="utf-8")
    return page.partition("## The same in long\n\n```yaml\n")[2].partition("```")[0]


def test_the_long_one_of_the_docs() -> None:
    manifest = parsed(long_one())
    assert manifest.command == ("python", "train.py", "--lr", "0.1")
    assert manifest.env == {"OMP_NUM_THREADS": "4"}
    assert manifest.sizes == (2, 4, 8, 16)
    assert manifest.requested_np == 8
    assert manifest.batch == BatchRange(256, 4096, set_by_policy=True)
    assert manifest.hints == PolicyHints(epochs=90, throughput={"1": 410, "4": 1530, "8": 2900})
    assert manifest.hints.samples_per_s == {1: 410.0, 4: 1530.0, 8: 2900.0}
    assert manifest.settings == JobSettings(stall_limit_s=120.0)
    assert JobManifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest
    assert checked_manifest(manifest) == manifest


def test_it_may_be_json() -> None:
    values = {"name": "a", "command": ["x", "1"], "min": 1, "max": 2, "env": {"A": "b: c"}}
    assert parsed(json.dumps(values, indent=1)) == JobManifest(
        "a", ("x", "1"), 1, 2, env={"A": "b: c"}
    )


def test_texts_count_as_they_are_written() -> None:
    text = "{A: 1.10, B: no, C: '', D: 0x10, E: null, F: ~, G: 1e3, H: \"a\\tb\", I: 2001-01-01}"
    assert parsed(f"{SHORTEST}env: {text}\n").env == {
        "A": "1.10",
        "B": "no",
        "C": "",
        "D": "0x10",
        "E": "null",
        "F": "~",
        "G": "1e3",
        "H": "a\tb",
        "I": "2001-01-01",
    }


def test_its_paths_begin_at_the_working_directory() -> None:
    text = f"{SHORTEST}cwd: job\nvenv: .venv\ndata: [../data, /abs, ~/d, ~]\ncheckpoint: ck\n"
    there = parsed(text).with_absolute_paths("/srv", lambda: "/home/me")
    assert there.cwd == "/srv/job"
    assert there.venv == "/srv/job/.venv"
    assert there.data == ("/srv/data", "/abs", "/home/me/d", "/home/me")
    assert there.checkpoint == "/srv/job/ck"
    assert parsed(SHORTEST).with_absolute_paths("/srv", lambda: "/home/me").cwd == "/srv"
    assert parsed(SHORTEST).with_absolute_paths("/srv", lambda: "/home/me").venv == ""


def test_its_environment_begins_with_the_virtual_environment() -> None:
    manifest = parsed(f"{SHORTEST}venv: /v\nenv: {{A: b}}\n")
    of_host = {"PATH": "/usr/bin", "PYTHONHOME": "/usr", "HOME": "/root"}
    assert manifest.environment(of_host) == {
        "PATH": "/v/bin:/usr/bin",
        "VIRTUAL_ENV": "/v",
        "HOME": "/root",
        "A": "b",
    }
    assert manifest.environment({})["PATH"] == "/v/bin"
    assert parsed(SHORTEST).environment(of_host) == of_host


# --- what is refused

# The text after the shortest manifest, so its first line is line 5.
MORE = {
    "comand: [x]": "5: a manifest has no key 'comand'; did you mean command?",
    "foo: 1": "5: a manifest has no key 'foo'; there are name, command, min, max, np, sizes,",
    "env:\n  A: 1\n  A: 2": "7: A is given twice, first in line 6; keep one",
    "name: x": "5: name is given twice, first in line 1; keep one",
    "cwd:": "5: cwd has no value; give one, or leave the key out",
    "np: 9": "5: np is 9; it must lie between min 1 and max 4",
    "np: true": "5: np is true; it must be a whole number from 1 to 100000",
    "sizes:\n- 1\n- 8": "7: sizes has 8; it must lie between min 1 and max 4",
    "size_step: 2\nnp: 4\nsizes: [3]": "and be a multiple of size_step 2",
    "sizes: 4": "5: sizes is 4; it must be a list",
    "sizes: [1, 2]": "4: max is 4, and the job may have 1 or 2 workers; nearest to 4 is 2; give np",
    "size_step: 5": "5: there is no multiple of size_step 5 between min 1 and max 4",
    "settings: {logical: 3}": "5: the job has 3 logical workers, and max is 4; lower max to 3, or",
    "settings: {exact: same-size}\nnp: 2": "5: the job has 2 logical workers, and max is 4; lower",
    "size_step: 3\nnp: 2": "6: np is 2, and the job may have 3 to 4 workers in steps of 3;",
    "env: [A=1]": "5: env is a list; it must be a mapping, like {KEY: value}",
    "env:\n  A B: 1": "6: the key 'A B' of env must be the name of a variable:",
    "env:\n  A: [1]": "6: env.A is a list; it must be a text",
    "env:\n  A:": "6: env.A has no value; give one, or leave the key out",
    "env:\n  EDL_JOB: x": "6: EDL_JOB is a variable of edl; write settings of the job under",
    "secrets:\n- a\n- ../b": "7: secrets[1] is '../b'; it must be 1 to 64 letters, digits, dots,",
    "profile: on-arrival": "5: profile is 'on-arrival'; it must be a mapping with sizes, each_s,",
    "profile: {sizes: 1}": "5: profile.sizes is 1; it must be a whole number from 2 to 16",
    "profile: {}\npreemptible: false": "5: profile changes the number of workers, and preemptible",
    "data:\n- /data\n- ''": "7: data[1] is ''; it must be a text that is not empty",
    "data: /data": "5: data is '/data'; it must be a list",
    f"data: [{'a,' * 1001}]": "5: data has 1001 items; at most 1000 are allowed",
    "labels: {gpu: ''}": "5: labels.gpu is ''; it must be a text that is not empty",
    "queue: a b": "5: queue is 'a b'; it must be 1 to 64 letters, digits, dots,",
    "priority: high": "5: priority is 'high'; it must be a whole number from -1000000 to 1000000",
    "weight: 0": "5: weight is 0; it must be a number above 0 and at most 1000000",
    "weight: 1e400": "5: weight is 1e400; it must be a number above 0",
    "weight: .nan": "5: weight is '.nan'; it must be a number above 0",
    f"priority: {'9' * 5000}": "5: priority is 99999",
    "weight: .inf": "5: weight is '.inf'; it must be a number above 0",
    "after: [digits]": "5: after has digits, which is this job; a job cannot wait for itself",
    "retries: -1": "5: retries is -1; it must be a whole number from 0 to 1000",
    "preemptible: yes": "5: preemptible is 'yes'; it must be true or false",
    "min_run_s: 5m": "5: min_run_s is '5m'; it must be a number of seconds from 0 to 1000000000",
    "batch: 32": "5: batch is 32; it must be a mapping with min, max, set_by_policy",
    "batch:\n  min: 64": "5: batch.max is missing; add a line like `max: 4`",
    "batch:\n  min: 64\n  max: 32": "6: batch.min is 64 and batch.max is 32; lower min, or",
    "batch: {min: 1, max: 2, policy: true}": "5: batch has no key 'policy'; did you mean",
    "hints: {throughput: {two: 5}}": "5: the key 'two' of hints.throughput must be a number of",
    "hints:\n  throughput:\n    2: -5": "7: hints.throughput.2 is -5; it must be a number above 0",
    "settings: {stall_s: -1}": "5: settings.stall_s is -1; it must be a positive time in seconds",
    "settings:\n  stal_s: 1": "6: settings has no key 'stal_s'; did you mean stall_s?",
    "settings: {stall_s: long}": "5: settings.stall_s is 'long'; it must be a number of seconds",
    "settings: {chaos: 1}": "5: settings.chaos is 1; it must be true or false",
    "settings: {on_divergence: mend}": "5: settings.on_divergence is 'mend'; it must be end or",
    "settings: {resume: auto}": "5: settings.resume is set by the cluster:",
    "\tnp: 2": "5: this is not YAML: found character '\\t' that cannot start any token; a tab",
    "env:\n\tA: 1": "6: this is not YAML: found character '\\t'",
    "np: 1\n  env: {}": "6: this is not YAML: mapping values are not allowed here; end each key",
    "cwd: a: b": "5: this is not YAML: mapping values are not allowed here",
    "cwd: 'a\n": "5: this is not YAML: found unexpected end of stream; a quotation mark that opens",
    "data: [a\nnp: 2": "6: this is not YAML: expected ',' or ']', but got ':' while parsing a flow",
    "cwd: @x": "5: this is not YAML: found character '@' that cannot start any token; quote",
    f"{'a' * 500}: 1": "5: a key has 500 characters, at most 128 are allowed",
    "---\nname: b": "5: a second document begins here; write one into each file",
    "env: &all {A: 1}": "5: &all is an anchor or alias of YAML, which is not used here; write the",
    "env: *all": "5: *all is an anchor or alias",
    "cwd: !!python/name:os.system": "5: the tag tag:yaml.org,2002:python/name:os.system is not",
    "? [a]\n: 1": "5: a key is a list or a mapping; keys are words",
    "env: {A: {B: [[[[[[1]]]]]]}}": "5: lists and mappings are nested deeper than 8 levels",
    "cwd: a\x00b": "5: the character '\\x00' is not allowed; remove it",
    'cwd: "a\\0b"': "5: the character '\\x00' is not allowed; remove it",
}
INSTEAD = {
    (COMMAND, "command: python train.py --lr 0.1 'a b'"): '[python, train.py, --lr, 0.1, "a b"]',
    (COMMAND, "command: python x.py | tee y"): 'a list: command: [bash, -c, "python x.py | tee y"]',
    (COMMAND, "command: python 'x"): 'a list: command: [bash, -c, "python \'x"]',
    (COMMAND, "command: ' '"): "2: command is a text; write a list: command: [python, train.py]",
    (COMMAND, "command: []"): "2: command is an empty list; name something",
    (COMMAND, "command: ['']"): "2: the command has no program; name it first",
    (COMMAND, "command: {a: b}"): "2: command is a mapping; it must be a list",
    (COMMAND, "command: [[a]]"): "2: command[0] is a list; it must be a text",
    (COMMAND, ""): "1: command is missing; add a line like `command: [python, train.py]`",
    (NAME, "name: my job"): "1: name is 'my job'; it must be 1 to 64 letters, digits, dots, dashes",
    (NAME, 'name: "digits\\n"'): "1: name is 'digits\\n'; it must be 1 to 64 letters",
    (MIN, "min: 8"): "3: min is 8 and max is 4; lower min, or raise max",
    (MIN, "min: 0"): "3: min is 0; it must be a whole number from 1 to 100000",
    (MIN, "min: 1.5"): "3: min is 1.5; it must be a whole number from 1 to 100000",
    (MIN, "min: '1'"): "3: min is '1'; it must be a whole number from 1 to 100000",
    (MAX, "max: many"): "4: max is 'many'; it must be a whole number from 1 to 100000",
    (MAX, f"max: {'9' * 5000}"): "4: max is 99999",
    (SHORTEST, ""): "1: the file is empty",
    (SHORTEST, "# nothing\n"): "1: the file is empty",
    (SHORTEST, "- a\n"): "1: the manifest is a list; write `key: value` lines: name, command, min",
    (SHORTEST, "name = 'a'\n"): "1: the manifest is \"name = 'a'\"; write `key: value` lines",
    (SHORTEST, "[" * 5000): "1: lists and mappings are nested deeper than 8 levels",
}


@pytest.mark.parametrize(("more", "sentence"), MORE.items(), ids=range(len(MORE)))
def test_what_is_refused_after_the_shortest(more: str, sentence: str) -> None:
    assert sentence in str(refused(f"{SHORTEST}{more}\n"))
    if sentence[0].isdigit():
        assert str(refused(f"{SHORTEST}{more}\n")).startswith(f"job.yaml:{sentence}")


@pytest.mark.parametrize(("change", "sentence"), INSTEAD.items(), ids=range(len(INSTEAD)))
def test_what_is_refused_in_the_shortest(change: tuple[str, str], sentence: str) -> None:
    assert change[0] in SHORTEST
    assert sentence in str(refused(SHORTEST.replace(*change)))


def test_an_error_has_its_place_as_values() -> None:
    error = refused(f"{SHORTEST}data:\n- /data\n- ''\n")
    assert (error.source, error.line, error.key) == ("job.yaml", 7, "data[1]")
    assert isinstance(error, UsageError)


def test_aliases_do_not_make_a_bomb() -> None:
    text = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        text += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    assert str(refused(text)).startswith("job.yaml:1: &a is an anchor")


def test_a_large_file_is_not_parsed() -> None:
    sentence = "job.yaml: it has more than 65536 bytes, and no manifest needs so many; is it the"
    assert str(refused("a" * 10**7)).startswith(sentence)
    with pytest.raises(ManifestError, match="more than 65536 bytes"):
        decoded_manifest(b"a" * (MAX_BYTES + 1), "job.yaml")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"name: a\ncommand: [\xe4]\n", "job.yaml:2: the byte 0xe4 is not UTF-8; save the file"),
        ("name: a".encode("utf-16"), "job.yaml:1: the byte 0xff is not UTF-8"),
    ],
)
def test_a_file_that_is_not_utf_8(data: bytes, sentence: str) -> None:
    with pytest.raises(ManifestError) as caught:
        decoded_manifest(data, "job.yaml")
    assert str(caught.value).startswith(sentence)


def test_a_byte_order_mark_is_no_part_of_it() -> None:
    assert decoded_manifest(b"\xef\xbb\xbfname: a", "job.yaml") == "name: a"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"min": 8}, "min is 8 and max is 4; lower min, or raise max"),
        ({"max": "4"}, "this is not a manifest: Expected `int`, got `str` - at `$.max`"),
        ({"name": "a b"}, "this is not a manifest: Expected `str` matching regex"),
        ({"command": ("x" * 10**6,)}, "this manifest: it has more than 65536 bytes"),
        ({"command": ("x", "a\0")}, "the character '\\x00' is not allowed; remove it"),
        ({"env": {"A": "b\0c"}}, "the character '\\x00' is not allowed; remove it"),
        ({"env": {"A": "b\ud800"}}, "the character '\\ud800' is not allowed; remove it"),
    ],
)
def test_one_that_a_program_has_made(changes: dict[str, Any], sentence: str) -> None:
    values: dict[str, Any] = {"name": "digits", "command": ("x",), "min": 1, "max": 4} | changes
    with pytest.raises(ManifestError) as caught:
        checked_manifest(JobManifest(**values))
    assert str(caught.value).startswith(sentence)


def test_lists_that_a_program_has_given_become_tuples_as_a_reader_has_them() -> None:
    """Else a submission that is sent again, with the same key, is another manifest."""
    command: Any = ["python", "train.py"]
    after: Any = ["prepare"]
    given = JobManifest("digits", command, 1, 4, after=after)
    checked = checked_manifest(given)
    assert checked == JobManifest("digits", ("python", "train.py"), 1, 4, after=("prepare",))
    assert JobManifest.from_json(json.loads(json.dumps(given.to_json()))) == checked


# --- its file


def test_it_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text(f"{SHORTEST}data: [~/d]\ncheckpoint: ck\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    manifest = read_job_manifest("job.yaml")
    assert manifest.cwd == str(tmp_path)
    assert manifest.data == ("/home/me/d",)
    assert manifest.checkpoint == str(tmp_path / "ck")


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ManifestError, match=r"it cannot be read: .*; name the file of a job's"):
        read_job_manifest(name)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"x" * 10**7, "in.yaml: it has more than 65536 bytes"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "in.yaml:1: the character '\\x7f' is not allowed"),
        (b"", "in.yaml:1: the file is empty"),
    ],
)
def test_no_more_is_read_than_a_manifest_may_have(data: bytes, sentence: str) -> None:
    class Pipe(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size is not None
            assert 0 < size <= MAX_BYTES + 1
            return super().read(size)

    with pytest.raises(ManifestError) as caught:
        manifest_in(Pipe(data), "in.yaml")
    assert str(caught.value).startswith(sentence)


# --- its schema


VALUES = {"name": "digits", "command": ["python", "train.py"], "min": 1, "max": 4}


def test_the_values_of_a_program_are_those_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    more = {"batch": {"min": 8, "max": 64, "set_by_policy": True}, "env": {"A": "1.10"}}
    values = {**VALUES, **more, "np": None, "cwd": "sub", "settings": {"stall_limit_s": 1.5}}
    values.pop("np")
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(values))
    found = job_manifest(values)
    assert found == job_manifest(path) == job_manifest(str(path)) == job_manifest(found)
    assert found == job_manifest(path.read_text() + "\n")
    assert (found.cwd, found.env) == (str(tmp_path / "sub"), {"A": "1.10"})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"min": "one"}, "min is 'one'; it must be a whole number from 1 to 100000"),
        ({"min": True}, "min is true; it must be a whole number from 1 to 100000"),
        ({"min": 1.5}, "min is 1.5; it must be a whole number from 1 to 100000"),
        ({"mx": 4}, "a manifest has no key 'mx'"),
        ({"max": None}, "max has no value; give one, or leave the key out"),
        ({"command": {"python"}}, "command is of type set; give texts, numbers, lists and"),
        ({"command": "python x"}, "command is a text; write a list: command: [python, x]"),
        ({"batch": {"min": 1}}, "batch.max is missing"),
        ({"env": {"A": "b\0c"}}, "the character '\\x00' is not allowed; remove it"),
        ({"env": {"A": {"B": {"C": {"D": {"E": {"F": {"G": {"H": {}}}}}}}}}}, "env.A... is nested"),
    ],
)
def test_wrong_values_of_a_program(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ManifestError) as caught:
        job_manifest(VALUES | change)
    assert str(caught.value).startswith(sentence)
    assert caught.value.line == 0


def test_the_schema_in_the_docs_is_what_the_code_says() -> None:
    assert docs_tables.SCHEMA.read_text(encoding="utf-8") == docs_tables.schema(), "run `make docs`"


def test_the_schema_accepts_what_is_parsed_and_refuses_the_rest() -> None:
    Draft202012Validator.check_schema(manifest_schema())
    schema = Draft202012Validator(manifest_schema())
    shortest = {"name": "digits", "command": ["python", 1], "min": 1, "max": 4}
    schema.validate(shortest)
    schema.validate({**shortest, "env": {"A": 1.5}, "batch": {"min": 1, "max": 2}})
    schema.validate({**shortest, "settings": {"stall_s": 5}, "hints": {"throughput": {"1": 5}}})
    for wrong in (
        {"foo": 1},
        {"min": 0},
        {"name": "a b"},
        {"command": "x"},
        {"command": []},
        {"env": {"A B": 1}},
        {"batch": {"min": 1}},
        {"batch": {"min": 1, "max": 2, "foo": 1}},
        {"settings": {"foo": 1}},
        {"settings": {"on_divergence": "mend"}},
        {"settings": {"resume": "auto"}},
        {"hints": {"throughput": {"a": 5}}},
        {"command": ["", "x"]},
        {"command": ["python", "\x17"]},
        {"cwd": "/a\x8e"},
    ):
        assert not schema.is_valid({**shortest, **wrong}), wrong
        with pytest.raises(ManifestError):
            job_manifest({**shortest, **wrong})
    for right in ({"max": 4.0}, {"profile": None}, {"command": ["python", ""]}):
        schema.validate({**shortest, **right})
        job_manifest({**shortest, **right})


def test_the_schema_describes_every_key() -> None:
    schema = manifest_schema()
    kinds = [schema, *schema["$defs"].values()]
    assert len(kinds) == 5
    for kind in kinds:
        assert [key for key, one in kind["properties"].items() if not one.get("description")] == []
