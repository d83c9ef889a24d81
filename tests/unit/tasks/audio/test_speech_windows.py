from __future__ import annotations

import pytest

from tsbatch.errors import PayloadTooLarge, Unprocessable
from tsbatch.tasks.audio.speech_windows import MAX_WINDOWS, Cutting, Span

RATE = 100


def spans(samples, window, strides=(0.0, 0.0), **more):
    return Cutting(window, strides, **{"longest": 60.0, **more}).spans(samples, RATE)


def test_a_short_sound_is_one_window_without_strides():
    assert spans(100, 1.0, None) == [Span(0, 100)]
    assert spans(100, 2.0, (0.5, 0.5)) == [Span(0, 100)]


def test_windows_overlap_by_their_strides():
    assert spans(250, 1.0, (0.2, 0.1)) == [
        Span(0, 100, 0, 10),
        Span(70, 170, 20, 10),
        Span(140, 240, 20, 10),
        Span(210, 250, 20, 0),
    ]


def test_what_is_taken_is_the_whole_sound_once():
    for samples in range(90, 700):
        for strides in ((0.2, 0.1), (0.0, 0.3), (0.3, 0.0), None):
            taken = [
                place
                for span in spans(samples, 1.0, strides)
                for place in range(span.start + span.left, span.stop - span.right)
            ]
            assert taken == list(range(samples))


def test_a_sixth_of_the_window_is_the_usual_stride():
    assert spans(150, 1.2, None)[0] == Span(0, 120, 0, 20)


def test_windows_are_whole_frames():
    assert spans(250, 1.0, (0.17, 0.17), align=8)[1] == Span(64, 160, 16, 16)


def test_a_rest_of_which_the_model_makes_nothing_is_left_out():
    assert spans(203, 1.0)[-1] == Span(200, 203)
    assert spans(203, 1.0, shortest=4)[-1] == Span(100, 200)


def test_the_whole_in_one_window():
    assert spans(6_000, 0) == [Span(0, 6_000)]
    with pytest.raises(PayloadTooLarge, match=r"60\.0 seconds long, over the longest window of 60"):
        spans(6_001, 0)


@pytest.mark.parametrize("window, strides", [(61.0, (1.0, 1.0)), (1.0, (0.5, 0.5)), (1.0, (0.9, 0.2)), (0.001, None)])
def test_impossible_windows(window, strides):
    with pytest.raises(Unprocessable, match="are not possible"):
        spans(1_000, window, strides)


def test_too_many_windows():
    assert len(spans(MAX_WINDOWS * 10, 0.1)) == MAX_WINDOWS
    with pytest.raises(Unprocessable, match=r"would become 257 windows"):
        spans(MAX_WINDOWS * 10 + 1, 0.1)
