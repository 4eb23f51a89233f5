"""An adapter whose library is not installed says in one sentence what to install."""

from __future__ import annotations

import sys

import pytest

import edl.huggingface
import edl.lightning
from edl.binding.api import import_adapter
from edl.errors import UsageError


def test_without_lightning_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(
        UsageError, match=r"lightning needs the package lightning, .*d\[lightning\]"
    ):
        _ = edl.lightning.ElasticStrategy
    with pytest.raises(AttributeError, match="no attribute 'Strategy'"):
        _ = edl.lightning.Strategy


@pytest.mark.parametrize(
    ("name", "library"), [("Trainer", "transformers"), ("Accelerator", "accelerate")]
)
def test_without_hugging_face_s_libraries_one_sentence_says_what_to_install(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=rf"needs the package {library}, .*d\[huggingface\]"):
        getattr(edl.huggingface, name)
    with pytest.raises(AttributeError, match="no attribute 'Pipeline'"):
        _ = edl.huggingface.Pipeline


def test_another_missing_module_is_no_matter_of_the_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"edl\.no_such_adapter"):
        import_adapter("edl.no_such_adapter.part", ["lightning"], "lightning")
