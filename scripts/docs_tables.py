"""Write the tables of docs/ that are generated from the code: `make docs`.

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`. The docs test fails where one
differs from what the code says, so nobody edits it by hand.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import rooms_svg
import typer

from edl.cli.main import app
from edl.cli.verbs import every_verb
from edl.cluster.candidates import ThroughputPoint
from edl.cluster.lifecycle import TRANSITIONS
from edl.cluster.manifest import (
    ArrivalProfile,
    BatchRange,
    JobManifest,
    PolicyHints,
    manifest_schema,
)
from edl.cluster.queues import QueueStatus
from edl.cluster.status import (
    ClusterJobDetails,
    ClusterJobStatus,
    PerfParams,
    SchedHints,
    SchedulerHints,
)
from edl.config import Config
from edl.event_text import EXPLANATIONS
from edl.events import DETAILS, EventKind
from edl.host.process import EXIT_CODES, MEANINGS, AgentResult
from edl.install.horovod_wheel import GPU_ONLY, patches
from edl.metric import Metric
from edl.metrics import JOB_METRICS, WORKER_METRICS
from edl.records import SwitchParts, TrainingStatus
from edl.spec import JobSettings, Sizes, variable
from edl.status import JobStatus, JobSummary, MemberStatus

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SCHEMA = DOCS / "reference" / "manifest.schema.json"
OPENAPI = DOCS / "reference" / "openapi.json"
# Options that mean the same everywhere; docs/reference/commands.md says so once, above the table.
EVERYWHERE = {"--zookeeper", "--secret-file", "--cluster", "--json", "--help"}


def main() -> None:
    """Rewrite the schemas, the figure of the rooms, and each page with a generated table."""
    SCHEMA.write_text(schema(), encoding="utf-8")
    OPENAPI.write_text(openapi(), encoding="utf-8")
    rooms_svg.SVG.write_text(rooms_svg.drawing(), encoding="utf-8")
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"docs/{page.relative_to(DOCS)} is written")


def filled(text: str) -> str:
    """Return a page with all its tables as the code says now."""
    return BLOCK.sub(lambda block: f"{block[1]}{TABLES[block[2]]()}\n{block[3]}", text)


# --- events and status


def events() -> str:
    """Each kind of event."""
    kinds = [DETAILS[kind] for kind in EventKind]
    rows = (
        (f"`{one.kind}`", one.writer, _sentence(one), _listed(one, before))
        for before, one in zip([None, *kinds], kinds, strict=False)
    )
    return _table(("kind", "written by", "when", "details"), rows)


def event_explanations() -> str:
    """Return the table of what each kind of event means, as `edl events --explain` says it."""
    rows = (
        (f"`{kind}`", str(one.severity), one.meaning, one.why, one.advice)
        for kind, one in EXPLANATIONS.items()
    )
    return _table(("kind", "severity", "meaning", "why", "what to do"), rows)


def switch_parts() -> str:
    """Return the table of what a switch event says of each worker."""
    return _table(("part", "meaning"), _meanings(SwitchParts))


def status() -> str:
    """Return the table of a job's status: what ZooKeeper knows, then what the leader says."""
    meanings = dict(_meanings(JobStatus))
    said = [f"`{field.name}`" for field in fields(TrainingStatus)]
    order = [*(name for name in meanings if name not in said), *said]
    return _table(("field", "meaning"), ((name, meanings[name]) for name in order))


def job_summary() -> str:
    """Return the table of what `edl list --json` says of a job of `edl run`."""
    return _table(("field", "meaning"), _meanings(JobSummary))


def members() -> str:
    """Return the table of what the status says of each worker."""
    return _table(("field", "meaning"), _meanings(MemberStatus))


def _listed(record: type, before: type | None) -> str:
    meanings = list(_meanings(record))
    if before is not None and meanings and meanings == list(_meanings(before)):
        return "the same"
    return "; ".join(f"{name}: {meaning}" for name, meaning in meanings)


def _meanings(record: Any) -> Iterator[tuple[str, str]]:
    """Each field of a record, and what its annotation says of it."""
    hints = get_type_hints(record, include_extras=True)
    for field in fields(record):
        hint = hints[field.name]
        if get_origin(hint) is not Annotated:
            raise ValueError(f"{record.__name__}.{field.name} says not what it is")
        yield f"`{field.name}`", get_args(hint)[1]


def _sentence(record: type) -> str:
    """Return the docstring in one line, as the middle of a row: when the event is logged."""
    text = " ".join((inspect.getdoc(record) or "").split()).removesuffix(".")
    return text.removeprefix("An event logged ").removeprefix("when ")


# --- metrics


def worker_metrics() -> str:
    """Return the table of the metrics of a worker."""
    return _metrics(WORKER_METRICS)


def job_metrics() -> str:
    """Return the table of the metrics that an agent gives of its job."""
    return _metrics(JOB_METRICS)


def _metrics(declared: tuple[Metric, ...]) -> str:
    rows = (
        (f"`{one.name}`", one.type, ", ".join(f"`{label}`" for label in one.labels), one.help)
        for one in declared
    )
    return _table(("metric", "type", "labels", "meaning"), rows)


# --- settings


def settings() -> str:
    """Those of a job, as they are declared."""
    rows = (setting_row(field) for kind in (Sizes, JobSettings) for field in fields(kind))
    return _table(("field", "environment", "default", "meaning"), rows)


def setting_row(one: Field[Any]) -> tuple[str, str, str, str]:
    """Return a setting as a row of the table."""
    about: Mapping[str, Any] = one.metadata
    option = f" (`edl run {about['option']}`)" if about["option"] else ""
    assert one.default is not MISSING
    name, default = f"`{one.name}`", shown_default(one.default)
    return name, f"`{variable(one.name)}`", default, f"{about['help']}{option}"


def shown_default(default: object) -> str:
    """Return the default of a setting as the table has it."""
    if default is None:
        return "none"
    if default in ("", ()):
        return "empty"
    if isinstance(default, bool):
        return f"`{int(default)}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def process_settings() -> str:
    """Those of a process, as they are declared."""
    rows = (setting_row(one) for one in fields(Config) if one.name not in ("sizes", "job_settings"))
    return _table(("field", "environment", "default", "meaning"), rows)


# --- Horovod and decisions


def horovod_patches() -> str:
    """Each patch of Horovod, and what is lost without it."""
    rows = (
        (
            f"`{one.name}`" + (" (only with `--gpu`)" if one.name in GPU_ONLY else ""),
            one.lost or "nothing once it is built: it is for the build",
        )
        for one in patches()
    )
    return _table(("patch", "without it"), rows)


def decisions() -> str:
    """Each page of docs/adr, by its title."""
    titles = (
        (path.name, path.read_text(encoding="utf-8").partition("\n")[0])
        for path in sorted((DOCS / "adr").glob("0*.md"))
    )
    rows = ((f"[{name[:4]}]({name})", title.partition(": ")[2]) for name, title in titles)
    return _table(("", "decision"), rows)


# --- clusters


def job_life() -> str:
    """Return the table of transitions in the life of a job of a cluster."""
    rows = (
        (f"`{state}`" if number == 0 else "", f"`{line.to}`", event, line.when)
        for state, events in TRANSITIONS.items()
        for number, (event, line) in enumerate(events.items())
    )
    return _table(("state", "goes to", "event", "when"), rows)


# --- the HTTP API


def openapi() -> str:
    """Return the OpenAPI description of the HTTP API, as its file has it."""
    from edl.api.server import api_app  # FastAPI takes half a second, and no other table needs it

    return f"{json.dumps(api_app().openapi(), indent=2)}\n"


def routes() -> str:
    """Each route of the HTTP API, by its OpenAPI description."""
    found = json.loads(OPENAPI.read_text(encoding="utf-8"))
    rows = (
        (
            f"`{method.upper()} {path}`",
            one["description"],
            ", ".join(f"`{p['name']}`" for p in one.get("parameters", ()) if p["in"] == "query"),
            _answered(one),
        )
        for path, methods in found["paths"].items()
        for method, one in methods.items()
    )
    return _table(("request", "what it does", "query", "answer"), rows)


def _answered(operation: Mapping[str, Any]) -> str:
    """Return the status of a route's answer if all goes well, and the name of its schema."""
    status = min(operation["responses"])
    [content] = operation["responses"][status]["content"].values()
    return f"{status} `{content['schema']['$ref'].rpartition('/')[2]}`"


# --- manifests


def schema() -> str:
    """Return the JSON schema of manifests, as its file has it."""
    return f"{json.dumps(manifest_schema(), indent=2)}\n"


def manifest() -> str:
    """Each key of a manifest."""
    return _keys(JobManifest)


def manifest_batch() -> str:
    """Each key of a manifest's `batch`."""
    return _keys(BatchRange)


def manifest_hints() -> str:
    """Each key of a manifest's `hints`."""
    return _keys(PolicyHints)


def manifest_profile() -> str:
    """Each key of a manifest's `profile`."""
    return _keys(ArrivalProfile)


def _keys(record: Any) -> str:
    hints = get_type_hints(record, include_extras=True)
    rows = (
        (
            f"`{field.name}`",
            _type_name(hints[field.name], field.name),
            *_default_and_meaning(field, get_args(hints[field.name])[-1].description),
        )
        for field in fields(record)
    )
    return _table(("key", "value", "default", "meaning"), rows)


def _type_name(hint: Any, name: str = "") -> str:
    """Return the type of a key as a user of YAML names it; ``name`` is that of the key."""
    if get_origin(hint) is Annotated:
        return _type_name(get_args(hint)[0], name)
    if NoneType in get_args(hint):
        return _type_name(next(one for one in get_args(hint) if one is not NoneType), name)
    if get_origin(hint) is Literal:
        return " or ".join(f"`{one}`" for one in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {_type_name(get_args(hint)[0])}s"
    if get_origin(hint) is Mapping or is_dataclass(hint):
        return "mapping"
    unit = " of seconds" if name.endswith("_s") else ""
    return {bool: "true or false", int: "whole number", float: "number", str: "text"}[hint] + unit


def _default_and_meaning(field: Any, text: str) -> tuple[str, str]:
    """Return the cells of a key's default and of its meaning.

    Where the description ends with "Default: ..." a key that is left out has the effect that is
    named there, which stands in the column then. ``text`` is the description of ``field``.
    """
    meaning, said, effect = text.partition(". Default: ")
    return (effect, meaning) if said else (_default(field), text)


def _default(field: Any) -> str:
    if field.default is MISSING:
        return "required" if field.default_factory is MISSING else "empty"
    if field.default is None or field.default in ("", ()):
        return "none"
    shown = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    return f"`{shown.lower() if isinstance(field.default, bool) else shown}`"


# --- commands


def commands() -> str:
    """Each verb: how it is called, what it does, and its own options."""
    return "\n\n".join(_command(path, verb) for path, verb in verbs())


def verbs() -> Iterator[tuple[str, Any]]:
    """All commands with their full names."""
    return _walk("edl", typer.main.get_command(app))


def _walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from _walk(f"{path} {name}", command.get_command(None, name))


def _command(path: str, verb: Any) -> str:
    options = [p for p in verb.params if p.param_type_name == "option" and not p.hidden]
    shared = [p for p in options if {*p.opts, *p.secondary_opts} <= EVERYWHERE]
    own = [p for p in options if p not in shared]
    words = [path, *(_call(p, p.opts[:1]) for p in own if p.required)]
    if not all(p.required for p in own):
        words.append("[OPTIONS]")
    arguments = [p for p in verb.params if p.param_type_name == "argument"]
    named = [p.metavar or p.name.upper() for p in arguments]
    anywhere = [f"[{_call(p)}]" for p in shared]
    # Where the arguments are a command of the user's, what follows them belongs to that command.
    is_last = not verb.context_settings.get("allow_interspersed_args", True)
    words += [*anywhere, *named] if is_last else [*named, *anywhere]
    text = " ".join((verb.help or "").split())
    bullets = [f"- `{_call(p)}`: {_help(p)}" for p in own]
    shown = ["", "```sh", *_examples(path.removeprefix("edl ")), "```"]
    return "\n".join(
        [f"### {path}", "", f"`{' '.join(words)}`", "", text, "", *bullets]
    ).rstrip() + "\n".join(["", *shown])


def _examples(name: str) -> list[str]:
    """Return the examples of a command as lines of a shell, each with what it does."""
    examples = [one.split("  # ") for one in dict(every_verb())[name].examples]
    width = max(len(typed) for typed, _ in examples)
    return [f"{typed.ljust(width)}  # {what}" for typed, what in examples]


def _call(option: Any, some: list[str] | None = None) -> str:
    names = ", ".join(some or [*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {option.metavar or _kind(option)}"


def _kind(option: Any) -> str:
    """Return the placeholder of the value of an option that has no ``metavar``: N for a number.

    Raises:
        ValueError: the value is no number, and the option has no name that says what it is.
    """
    known = {"host": "NAME", "job": "JOB", "address": "ADDRESS"}.get(option.name)
    if known is None and option.type.name.split()[0] not in ("int", "float"):
        raise ValueError(f"{option.opts[-1]} needs a metavar: its value is no number")
    return known or "N"


def _help(option: Any) -> str:
    text = option.help or ""
    default = option.default
    if default in (None, False, True) or default == () or "Default:" in text:
        return f"{text} Required." if option.required else text
    shown = f"{default:g}" if isinstance(default, float) else default
    return f"{text} Default: {shown}."


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


# --- the end of an agent


def agent_ends() -> str:
    """Return the table of the ends of an agent, with the exit code of `edl agent` for each."""
    codes = {end: EXIT_CODES.get(end, "that of the job") for end in MEANINGS}
    rows = ((f"`{end}`", str(codes[end]), meaning) for end, meaning in MEANINGS.items())
    return _table(("`end`", "code of `edl agent`", "meaning"), rows)


def agent_result() -> str:
    """Return the table of the fields of the last line."""
    return _table(("field", "meaning"), _meanings(AgentResult))


def cluster_job() -> str:
    """Return the table of what is told of each job of a cluster."""
    return _table(("field", "meaning"), _meanings(ClusterJobStatus))


def queue() -> str:
    """Return the table of what `edl queue list --json` says of a queue."""
    return _table(("field", "meaning"), _meanings(QueueStatus))


def cluster_job_details() -> str:
    """Return the table of what is told of one job of a cluster."""
    return _table(("field", "meaning"), _meanings(ClusterJobDetails))


def scheduler_hints() -> str:
    """Return the table of what other schedulers are told of a job."""
    return _table(("field", "meaning"), _meanings(SchedulerHints))


def sched_hints() -> str:
    """Return the table of the same in the words of AdaptDL."""
    return _table(("field", "meaning"), _meanings(SchedHints))


def perf_params() -> str:
    """Return the table of the parameters of a step's time."""
    return _table(("field", "meaning"), _meanings(PerfParams))


def throughput_point() -> str:
    """Return the table of what is told of a job's throughput with one number of workers."""
    return _table(("field", "meaning"), _meanings(ThroughputPoint))


# --- docstrings of the public API, read: importing the frameworks takes seconds


SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields")
ROOT = DOCS.parent


@cache
def _tree(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _found(module: str, name: str) -> tuple[str, ast.AST] | None:
    """Return the module that defines a name which is visible in ``module``, and its definition."""
    for node in reversed(_tree(module).body):  # the last of those with overloads
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("edl"):
            for alias in node.names:
                if name in (alias.asname, alias.name) and (alias.asname or alias.name) == name:
                    return _found(node.module, alias.name)
    return None


def _member(module: str, owner: ast.ClassDef, name: str) -> ast.AST:
    """Return the definition of a method, of the class or of one of its bases."""
    for node in owner.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    for base in owner.bases:
        top = base.value if isinstance(base, ast.Subscript) else base
        found = _found(module, ast.unparse(top).rpartition(".")[2])
        if found and isinstance(found[1], ast.ClassDef):
            try:
                return _member(*found, name)
            except LookupError:
                continue
    raise LookupError(f"{owner.name} has no {name}")


def docstring(module: str, path: str) -> str:
    """Return the docstring of a public name as Markdown: ``DataLoader.epochs`` of a module."""
    top, _, member = path.partition(".")
    found = _found(module, top)
    assert found, f"{module} has no {path}"
    node = _member(*found, member) if member else found[1]  # type: ignore[arg-type]
    text = ast.get_docstring(node)  # type: ignore[arg-type]
    assert text, f"{module}.{path} has no docstring"
    return _markdown(text)


def _markdown(text: str) -> str:
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    out: list[str] = []
    for part in re.split(rf"\n\n(?=(?:{'|'.join(SECTIONS)}):\n)", text):
        title, _, rest = part.partition(":\n")
        if title in SECTIONS:
            out.append(_section(title, textwrap.dedent(rest)))
        else:
            out.append(_prose(part))
    return "\n\n".join(out)


def _prose(text: str) -> str:
    """Paragraphs, with what is indented after ``::`` as code."""
    paragraphs = []
    for one in re.split(r"\n\n(?=\S)", text):
        head, colons, code = one.partition("::\n\n")
        paragraphs.append(" ".join(head.split()) + (":" if colons and head else ""))
        if colons:
            paragraphs.append(f"```python\n{textwrap.dedent(code).rstrip()}\n```")
    return "\n\n".join(each for each in paragraphs if each)


def _section(title: str, text: str) -> str:
    if title in ("Returns", "Yields"):
        return f"{title}: {' '.join(text.split())}"
    entries = re.split(r"\n(?=\S)", text.strip())
    bullets = [
        "- `{}`: {}".format(*(" ".join(each.split()) for each in one.split(":", 1)))
        for one in entries
        if ":" in one
    ]
    head = {"Args": "", "Attributes": ""}.get(title, f"{title}:\n\n")
    return head + "\n".join(bullets)


def calls(module: str, name: str) -> str:
    """Return the table of the public methods of a class, each with what it does."""
    found = _found(module, name)
    assert found
    assert isinstance(found[1], ast.ClassDef)
    rows = []
    for node in found[1].body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            text = _markdown(ast.get_docstring(node) or "")
            kept = [one for one in text.split("\n\n") if not one.startswith(("- `", "Raises:"))]
            is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
            call = node.name if is_property else f"{node.name}({_arguments(found[0], node.args)})"
            result = "" if node.returns is None else f"`{ast.unparse(node.returns)}`"
            rows.append((f"`{call}`", " ".join(" ".join(kept).split()), result))
    return _table(("call", "what it does", "returns"), rows)


def _arguments(module: str, given: ast.arguments) -> str:
    """Return the arguments of a method as a user writes them: no ``self``, no types."""
    given.defaults = [_constant(module, each) for each in given.defaults]
    given.kw_defaults = [each and _constant(module, each) for each in given.kw_defaults]
    for one in (*given.posonlyargs, *given.args, *given.kwonlyargs):
        one.annotation = None
    for one in (given.vararg, given.kwarg):
        if one is not None:
            one.annotation = None
    words = ast.unparse(given).split(", ")
    return ", ".join(word for word in words if word not in ("self", "/"))


def _constant(module: str, default: ast.expr) -> ast.expr:
    """Return the number behind the name of a constant, of ``module`` or of one that it imports."""
    name = ast.unparse(default).rpartition(".")[2]
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return node.value
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("edl"):
            named = {alias.name for alias in node.names}
            inside = {
                f"{node.module}.{each}"
                for each in named
                if f"{each}.{name}" in ast.unparse(default)
            }
            for other in [node.module] if name in named else inside:
                return _constant(other, ast.Name(name))
    return default


# The pages of the API say each of these by its docstring, under a heading of their own.
DOCSTRINGS = {
    "edl.torch": (
        "init DataLoader DataLoader.epochs DataLoader.steps "
        "DataLoader.stop DataLoader.epoch_is_over mean log sum gather gather_each batch_weight "
        "on_resize policy on_interval Optimizer no_sync notify_batch_end sync_metrics track "
        "checkpoint load_weights LRSchedule in_samples LRTuner LRTuner.step"
    ),
    "edl.tensorflow": (
        "Dataset Optimizer KerasCallback DistributedGradientTape LRSchedule LRTuner load_weights "
        "sum gather Session SessionHook elastic_shard_generator next_batch notify_batch_end"
    ),
    "edl.client": "submit",
}


TABLES = {
    "agent-ends": agent_ends,
    "agent-result": agent_result,
    "cluster-job": cluster_job,
    "cluster-job-details": cluster_job_details,
    "commands": commands,
    "decisions": decisions,
    "event-explanations": event_explanations,
    "events": events,
    "horovod-patches": horovod_patches,
    "job-life": job_life,
    "job-metrics": job_metrics,
    "job-summary": job_summary,
    "manifest": manifest,
    "manifest-batch": manifest_batch,
    "manifest-hints": manifest_hints,
    "manifest-profile": manifest_profile,
    "members": members,
    "queue": queue,
    "perf-params": perf_params,
    "routes": routes,
    "sched-hints": sched_hints,
    "scheduler-hints": scheduler_hints,
    "settings": settings,
    "status": status,
    "switch-parts": switch_parts,
    "throughput-point": throughput_point,
    "worker-metrics": worker_metrics,
}

TABLES["process-settings"] = process_settings
TABLES["errors"] = lambda: _prose(
    (ast.get_docstring(_tree("edl.errors")) or "").partition("\n\n")[2]
)
TABLES |= {f"calls-{name}": partial(calls, "edl.client", name) for name in ("Job", "Cluster")}
TABLES |= {
    f"doc-{module.rpartition('.')[2]}-{path.replace('.', '-')}": partial(docstring, module, path)
    for module, paths in DOCSTRINGS.items()
    for path in paths.split()
}

if __name__ == "__main__":
    main()
