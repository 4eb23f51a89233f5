"""The weights of a trained model, without the job that trained it: found, read, exported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edl.checkpoint import format as files
from edl.checkpoint.format import Checkpoint
from edl.checkpoint.safetensors import Blob, Layout, read_plain, write_whole
from edl.errors import CheckpointError, UsageError

_TOOLS = {"torch": "pt", "tensorflow": "tf"}  # what other tools read in "format"
_OTHERS = (".pt", ".pth", ".bin", ".ckpt", ".h5", ".keras", ".npz", ".npy", ".onnx", ".pkl", ".pb")


def newest(directory: Path) -> Checkpoint:
    """The newest good checkpoint in ``directory``.

    Raises:
        CheckpointError: there is none; why others were refused.
    """
    refused: list[str] = []
    for path in files.listed(directory):
        try:
            return files.read(path)
        except CheckpointError as error:
            refused.append(str(error))
    why = f"; refused: {'; '.join(refused)}" if refused else ""
    raise CheckpointError(f"there is no checkpoint in {directory}{why}")


def checkpoint_at(path: Path) -> Checkpoint:
    """The checkpoint in the file ``path``, or the newest one in that directory.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    return newest(path) if path.is_dir() else files.read(path)


def weights(path: Path) -> Mapping[str, Blob]:
    """The model's parameters and buffers, by their names in the model.

    Args:
        path: of a checkpoint; of a directory: its newest one; or of an exported file.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    if path.is_dir() or files.is_checkpoint(path):
        return _model(checkpoint_at(path))
    return read_plain(path)


def export(source: Path, target: Path) -> tuple[Checkpoint, int]:
    """Write the weights alone, without optimizer and ledger: what was read, and the bytes.

    Raises:
        CheckpointError: there is no good checkpoint, or ``target`` cannot be written.
        UsageError: ``target`` exists, or has the name of a file of another kind.
    """
    if target.suffix in _OTHERS:
        raise UsageError(
            f"{target} would be a safetensors file, whatever its name; choose "
            f"{target.with_suffix('.safetensors')}: edl.load_weights reads it, and the library "
            "safetensors"
        )
    if target.exists():
        raise UsageError(f"{target} exists; remove it, or choose another name")
    found = checkpoint_at(source)
    layout = Layout.of(_model(found))
    header = layout.header({"format": _TOOLS.get(found.manifest.framework, "np")})
    try:
        size = write_whole(target, [header, *(blob.data for _, blob in layout.blobs)])
    except OSError as error:
        raise CheckpointError(f"cannot write {target}: {error.strerror}") from error
    return found, size


def _model(checkpoint: Checkpoint) -> Mapping[str, Blob]:
    model: Mapping[str, Blob] = checkpoint.state["model"]
    return model
