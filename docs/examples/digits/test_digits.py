from pathlib import Path

import pytest
from digits_handler import Digits
from tsbatch.pytest_plugin import assert_batch_invariant

IMAGES = [[place / 8] * 64 for place in range(8)]


@pytest.fixture
def runner(handler_runner):
    return handler_runner(Digits, Path(__file__).parent, batch_size=8)


def test_a_bad_request_fails_alone(runner):
    good, bad = runner.predict([{"inputs": IMAGES[:2]}, {"inputs": [[1.0, 2.0]]}])
    assert (good.status, len(good.json())) == (200, 2)
    assert bad.status == 500


def test_its_company_in_a_batch_changes_no_answer(runner):
    assert_batch_invariant(runner, [{"inputs": [image]} for image in IMAGES])
