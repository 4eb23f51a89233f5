"""Run a script that Accelerate ships, with edl's Accelerator in place of its own."""

import runpy
import sys

import edl.torch as edl

edl.init()

import accelerate.accelerator  # noqa: E402  (it takes long)

from edl.huggingface import Accelerator  # noqa: E402

accelerate.Accelerator = accelerate.accelerator.Accelerator = Accelerator
runpy.run_module(f"accelerate.test_utils.scripts.{sys.argv.pop(1)}", run_name="__main__")
