"""`edl build-horovod`: build Horovod 0.28.1 for the frameworks of this interpreter."""

from __future__ import annotations

from typing import Annotated

import typer

from edl import config
from edl.cli.common import console
from edl.install import horovod_wheel, installation


def build_horovod(
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu",
            help="Build Horovod's collectives for tensors on GPUs (allreduce, allgather, ...). "
            "Horovod's own variables choose the library and its folders: "
            "HOROVOD_GPU_OPERATIONS (default NCCL), HOROVOD_NCCL_HOME, HOROVOD_CUDA_HOME, ...",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Build again although the wheel is in the cache.")
    ] = False,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Install the wheel after building it.")
    ] = True,
) -> None:
    """Build Horovod 0.28.1 for today's PyTorch and TensorFlow, and install it.

    The wheel is kept in the user's cache; a second call takes it from there. With --no-install,
    prints its path.
    """
    screen = console()
    wanted = horovod_wheel.recipe(gpu=gpu, environ=config.environment())
    if install:
        installation.provide(wanted, force=force, console=screen)
    else:
        typer.echo(str(horovod_wheel.build(wanted, force=force, console=screen)))
