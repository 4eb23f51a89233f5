"""`edl checkpoint`: list and show the checkpoints of a job, and export the weights of one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from edl.checkpoint import format as files
from edl.checkpoint import weights
from edl.checkpoint.format import Checkpoint, Manifest
from edl.checkpoint.location import Location, RemotePath, file_bytes, location
from edl.checkpoint.safetensors import Blob
from edl.checkpoint.tensors import named_files
from edl.cli.common import JsonOption, moment
from edl.errors import CheckpointError, UsageError
from edl.text import aligned, counted

MAX_CHECKED_BYTES = 10**9  # read and compared in about 2 s
SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A checkpoint, or a directory: its newest one. Also a URL."
    ),
]


def list_(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Where the job saves.")],
    as_json: JsonOption = False,
) -> None:
    """List the checkpoints in DIR, the highest step first; a damaged file with its error.

    All bytes of the newest ones are compared with their checksums, up to 1 GB in all, and of the
    others only the headers, as behind a URL. Without checkpoints it ends with 1.
    """
    place = location(directory)
    if not place.is_dir():
        raise UsageError(f"{directory} is no directory; `edl checkpoint show` reads one file")
    found: list[dict[str, Any]] = []
    left = 0 if isinstance(place, RemotePath) else MAX_CHECKED_BYTES
    for path in files.checkpoint_files(place):
        if one := _listed(path, left):
            left -= one["bytes"]
            found.append(one)
    if as_json:
        typer.echo(json.dumps(found))
    elif found:
        titles = ("STEP", "EPOCH", "JOB", "SAVED", "SIZE", "FILE")
        for line in aligned([titles, *map(_row, found)]):  # whole texts: names can be copied
            typer.echo(line)
        if unread := sum(one["error"] is None and not one["checked"] for one in found):
            typer.echo(
                f"Only the headers of the last {counted(unread, 'file')} were read: "
                "`edl checkpoint show FILE` compares all bytes."
            )
    if not found:
        raise CheckpointError(f"there is no checkpoint in {directory}")


def show(source: SourceArgument, as_json: JsonOption = False) -> None:
    """Print step and epoch of a checkpoint, and the name, type and shape of its model's tensors.

    All bytes of the file are compared with its checksums; a damaged file is an error. Of a
    directory, the newest one that is not damaged is shown, after a warning of those that are.
    """
    found = weights.checkpoint_at(location(source))
    model: dict[str, Blob] = found.state["model"]
    if as_json:
        tensors = {name: {"dtype": b.dtype, "shape": b.shape} for name, b in model.items()}
        about = {"optimizer": found.state["optimizer_kind"], "model": tensors}
        typer.echo(json.dumps({**_about(found.path, found.manifest), **about}))
        return
    for line in _described(found):
        typer.echo(line)
    shapes = {name: " x ".join(map(str, blob.shape)) or "scalar" for name, blob in model.items()}
    rows = ((name, blob.dtype, shapes[name]) for name, blob in model.items())
    for line in aligned([("TENSOR", "DTYPE", "SHAPE"), *rows]):
        typer.echo(line)


def export(
    source: SourceArgument,
    target: Annotated[
        Path, typer.Argument(metavar="FILE.safetensors", help="The file to write; a new one.")
    ],
    tied_once: Annotated[
        bool,
        typer.Option(
            "--tied-once",
            help="Write a tensor that has several names in the model under the first one only, as "
            "load_model() of safetensors wants it. Without, load_state_dict() finds all names.",
        ),
    ] = False,
) -> None:
    """Write the model's weights of a checkpoint into FILE.safetensors, which any tool can open."""
    found, written, size = weights.export_weights(location(source), target, tied_once)
    tensors = counted(written, "tensor")
    typer.echo(
        f"wrote {tensors} of step {found.manifest.step} of job {found.manifest.job} "
        f"to {target} ({_megabytes(size)})"
    )


def _listed(path: Location, max_bytes: int) -> dict[str, Any] | None:
    """Return the object of one file in `list --json`; None if a job has removed it meanwhile."""
    try:
        try:
            about = _about(path, files.read_manifest(path))
            if checked := about["bytes"] <= max_bytes:
                files.read_checkpoint(path)
            return {**about, "checked": checked, "error": None}
        except CheckpointError as error:
            unknown = dict.fromkeys(("job", "step", "epoch", "framework", "saved_at", "checked"))
            return {"path": str(path), "bytes": file_bytes(path), **unknown, "error": str(error)}
    except FileNotFoundError:
        return None


def _about(path: Location, manifest: Manifest) -> dict[str, Any]:
    about = asdict(manifest)
    kept = {name: about[name] for name in ("job", "step", "epoch", "framework", "saved_at")}
    others = named_files(path, files.read_records(path))
    size = sum(file_bytes(each) for each in (path, *others))
    return {"path": str(path), "bytes": size, **kept}


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    size = _megabytes(one["bytes"])
    if one["error"] is not None:
        return ("", "", "", "", size, one["error"])
    saved, name = moment(one["saved_at"]), Path(one["path"]).name
    return (str(one["step"]), str(one["epoch"]), one["job"], saved, size, name)


def _described(found: Checkpoint) -> list[str]:
    manifest, model = found.manifest, found.state["model"]
    values = sum(math.prod(blob.shape) for blob in model.values())
    source = manifest.source
    order = f"shuffled with seed {source['seed']}" if source["shuffle"] else "in their own order"
    size = _megabytes(_about(found.path, found.manifest)["bytes"])
    samples, batch = counted(source["total"], "sample"), source["batch_size"]
    return [
        f"file:       {found.path} ({size}; every byte fits its checksum)",
        f"job:        {manifest.job}, saved {moment(manifest.saved_at)}",
        f"place:      step {manifest.step}, epoch {manifest.epoch}",
        f"data:       {samples}, {order}, batches of {batch} a worker",
        f"framework:  {manifest.framework}, optimizer {found.state['optimizer_kind']}",
        f"model:      {counted(values, 'value')} in {counted(len(model), 'tensor')}",
    ]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
