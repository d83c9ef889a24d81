"""torch.compile against transformers itself, with what it compiles; the other engines are among the fast tests."""

from __future__ import annotations

from tests.integration.test_engines import answers_like_transformers
from tests.tiny import save_encoder


def test_compiled_answers_are_those_of_transformers(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    answers_like_transformers(save_encoder(tmp_path / "model"), "compile")
    assert any((tmp_path / "compiled").rglob("*.so")), "something was compiled"
