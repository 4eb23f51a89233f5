"""Find, read and export the weights in checkpoints, without the job that trained them.

:func:`weights` reads them, :func:`export_weights` writes them into a file for other tools.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edl.checkpoint import format as files
from edl.checkpoint.format import Checkpoint
from edl.checkpoint.location import Location
from edl.checkpoint.safetensors import TYPES, Blob, read_plain, serialized, write_whole
from edl.checkpoint.tensors import check_is_whole
from edl.errors import CheckpointError, UsageError, some

logger = logging.getLogger(__name__)
_TOOLS = {"torch": "pt", "tensorflow": "tf"}  # what other tools read in "format"
_OTHERS = (".pt", ".pth", ".bin", ".ckpt", ".h5", ".keras", ".npz", ".npy", ".onnx", ".pkl", ".pb")


def newest(directory: Location) -> Checkpoint:
    """Return the intact checkpoint of the highest step in `directory`; warn of damaged ones."""
    refused: list[str] = []
    for path in files.checkpoint_files(directory):
        try:
            found = files.read_checkpoint(path)
        except CheckpointError as error:
            refused.append(str(error))
            continue
        if refused:
            logger.warning("%s; taken instead: %s", "; ".join(refused), path)
        return found
    why = f"; refused: {'; '.join(refused)}" if refused else ""
    raise CheckpointError(f"there is no checkpoint in {directory}{why}")


def checkpoint_at(path: Location) -> Checkpoint:
    """Return the checkpoint in the file `path`, or the newest one if `path` is a directory."""
    check_is_whole(path)
    return newest(path) if path.is_dir() else files.read_checkpoint(path)


def weights(path: Location) -> Mapping[str, Any]:
    """Return a model's weights from a checkpoint, a directory or another file, by their names."""
    check_is_whole(path)
    if path.is_dir() or files.is_checkpoint(path):
        return _model(checkpoint_at(path))
    return read_plain(path)


def export_weights(
    source: Location, target: Path, tied_once: bool = False
) -> tuple[Checkpoint, int, int]:
    """Write the weights of a checkpoint into a safetensors file, without optimizer and ledger."""
    if target.suffix in _OTHERS:
        raise UsageError(
            f"{target} would be a safetensors file, whatever its name; choose "
            f"{target.with_suffix('.safetensors')}: edl.load_weights reads it, and the library "
            "safetensors"
        )
    if target.exists():
        raise UsageError(f"{target} exists; remove it, or choose another name")
    found = checkpoint_at(source)
    blobs = {name: one for name, one in _model(found).items() if isinstance(one, Blob)}
    if odd := sorted(name for name, blob in blobs.items() if blob.dtype not in TYPES):
        raise UsageError(
            f"safetensors has no type for {some(odd)} ({blobs[odd[0]].dtype}); "
            "edl.load_weights reads the checkpoint itself, with all its types"
        )
    ties = _ties(found)
    if tied_once:
        blobs = {name: blob for name, blob in blobs.items() if name not in ties}
    metadata = {**ties, "format": _TOOLS.get(found.manifest.framework, "np")}
    try:
        # One with several names is written under each, so that the file is a whole `state_dict()`.
        size = write_whole(target, serialized(blobs, metadata))
    except OSError as error:
        raise CheckpointError(f"cannot write {target}: {error.strerror}") from error
    return found, len(blobs), size


def _model(checkpoint: Checkpoint) -> Mapping[str, Any]:
    model: Mapping[str, Blob] = checkpoint.state["model"]
    exported = checkpoint.state.get("state_dict")
    if exported is None:
        return model
    named = {name: model[tensor] for name, tensor in exported["names"].items()}
    return {**named, **exported["besides"]}


def _ties(checkpoint: Checkpoint) -> dict[str, str]:
    firsts: dict[str, str] = {}
    ties: dict[str, str] = {}
    names: Mapping[str, str] = checkpoint.state.get("state_dict", {}).get("names", {})
    for name in sorted(names):
        kept = firsts.setdefault(names[name], name)
        if kept != name:
            ties[name] = kept
    return ties
