"""What a subclass must keep to, checked when it loads."""

from __future__ import annotations

import pytest

from tsbatch.contract import STAGE_ARGUMENTS, check_contract
from tsbatch.errors import LoadError
from tsbatch.handler import BatchHandler


def checked(**methods):
    check_contract(type("Mine", (BatchHandler,), methods)(), BatchHandler)


def test_the_stages_as_they_are_and_as_people_write_them():
    checked()
    checked(preprocess=lambda self, data: data, inference=lambda self, data, *args, **kwargs: data)
    checked(postprocess=lambda self, outputs, items, top=3: outputs)
    checked(preprocess=staticmethod(lambda items: items))


def test_overriding_the_loop_is_refused():
    with pytest.raises(LoadError, match=r"Mine overrides handle, .* override the stages \(decode_item, preprocess"):
        checked(handle=lambda self, data, context: [])


@pytest.mark.parametrize("stage, arguments", STAGE_ARGUMENTS.items())
def test_a_stage_that_cannot_be_called_gets_the_line_to_write(stage, arguments):
    with pytest.raises(LoadError) as caught:
        checked(**{stage: lambda self: None})
    called = ", ".join(arguments)
    assert str(caught.value) == (
        f"Mine.{stage} cannot be called as {stage}({called}); write: def {stage}(self, {called})"
    )


def test_torchserves_postprocess_takes_one_argument_less():
    with pytest.raises(LoadError, match=r"def postprocess\(self, outputs, items\)"):
        checked(postprocess=lambda self, data: data)
