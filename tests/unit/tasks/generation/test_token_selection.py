"""Each row's own scores and end, against transformers' processors row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tsbatch.tasks.generation.token_selection import Plan, RowEnds, RowScores, Sampler

WORDS = 50
END = 7


def random_scores(rows, seed=0):
    return torch.randn(rows, WORDS, generator=torch.Generator().manual_seed(seed)) * 4


def sampled(**about):
    return Plan(**{"max_new_tokens": 20, "temperature": 1.0, **about})


FILTERS = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0, "top_k": 5},
    {"top_k": 1},
    {"top_k": 1000},
    {"top_p": 0.5},
    {"top_p": 0.01},
    {"top_p": 0.9, "top_k": 12, "temperature": 2.0},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"min_p": 0.05, "top_p": 0.95, "top_k": 30, "temperature": 1.7},
]


def by_transformers(scores, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """One row through transformers' warpers, in the order of its generate."""
    from transformers.generation import logits_process

    warpers = [
        (temperature != 1.0, "TemperatureLogitsWarper", temperature),
        (top_k, "TopKLogitsWarper", top_k),
        (top_p < 1.0, "TopPLogitsWarper", top_p),
        (min_p, "MinPLogitsWarper", min_p),
    ]
    for wanted, name, value in warpers:
        if wanted:
            scores = getattr(logits_process, name)(value)(None, scores)
    return scores


def test_filters_are_those_of_transformers_each_row_its_own():
    scores = random_scores(len(FILTERS))
    made = Sampler([sampled(**wish) for wish in FILTERS]).filtered(scores)
    for row, wish in enumerate(FILTERS):
        expected = by_transformers(scores[row : row + 1].clone(), **wish)[0]
        assert (made[row] == -torch.inf).tolist() == (expected == -torch.inf).tolist(), wish
        torch.testing.assert_close(made[row], expected)


def drawn(draw, scores, step):
    picked = draw(scores, step)
    assert ((picked == 0).sum(1) == 1).all()
    assert ((picked == -torch.inf).sum(1) == WORDS - 1).all()
    return picked.argmax(1).tolist()


def test_what_is_drawn_has_the_frequencies_that_the_scores_say():
    scores, count = random_scores(1) / 4, 20_000
    plan = sampled(max_new_tokens=1, top_k=10, temperature=1.5)
    draw = Sampler([Plan(1, top_k=10, temperature=1.5, seed=(seed, 0)) for seed in range(count)])
    found = np.bincount(drawn(draw, scores.expand(count, -1), 0), minlength=WORDS) / count
    expected = Sampler([plan]).filtered(scores).softmax(-1)[0].numpy()
    assert (found[expected == 0] == 0).all()
    # Four standard deviations of a frequency.
    assert (np.abs(found - expected) <= 4 * np.sqrt(expected / count) + 1e-12).all()


def test_a_seed_draws_the_same_alone_and_among_others():
    scores = random_scores(6) / 4
    plans = [
        sampled(seed=(seed, 0), max_new_tokens=most) for seed, most in ((5, 9), (6, 3), (5, 4), (7, 9), (8, 9), (5, 9))
    ]
    together = Sampler(plans)
    steps = [drawn(together, scores, step) for step in range(9)]
    for row, plan in enumerate(plans):
        alone = Sampler([plan])
        own = [drawn(alone, scores[row : row + 1], step)[0] for step in range(plan.max_new_tokens)]
        assert [step[row] for step in steps[: plan.max_new_tokens]] == own
    assert len({tuple(step[row] for step in steps) for row in (0, 1, 3, 4)}) == 4


def test_a_longer_text_of_a_seed_begins_like_the_shorter_one():
    scores = random_scores(1)
    short, long = Sampler([sampled(max_new_tokens=5)]), Sampler([sampled(max_new_tokens=20)])
    assert [drawn(short, scores, step) for step in range(5)] == [drawn(long, scores, step) for step in range(5)]


def test_several_texts_of_one_seed_differ():
    scores = random_scores(1) / 8
    texts = []
    for number in range(5):
        draw = Sampler([sampled(seed=(3, number))])
        texts.append(tuple(drawn(draw, scores, step)[0] for step in range(10)))
    assert len(set(texts)) == 5


def scored(plans, ids, scores, **about):
    about = {"start": ids.shape[1], "ends": [END], **about}
    return RowScores(plans, **about)(ids, scores.clone())


def test_repetition_is_penalised_as_in_transformers_and_padding_is_not_repetition():
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    scores = random_scores(3)
    ids = torch.tensor([[1, 2, 3, 3], [9, 9, 4, 5], [9, 9, 9, 6]])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]])
    penalties = [1.5, 1.0, 0.7]
    made = scored([Plan(5, repetition_penalty=penalty) for penalty in penalties], ids, scores, mask=mask)
    for row, penalty in enumerate(penalties):
        said = ids[row : row + 1, mask[row].bool()]
        processor = RepetitionPenaltyLogitsProcessor(penalty)
        torch.testing.assert_close(made[row], processor(said, scores[row : row + 1].clone())[0])
    assert made[1].tolist() == scores[1].tolist()


def test_no_end_before_the_least_of_each_row():
    plans = [Plan(9, min_new_tokens=least) for least in (0, 1, 3)]
    rows = RowScores(plans, start=2, ends=[END, 8])
    for step in range(4):
        made = rows(torch.zeros(3, 2 + step, dtype=torch.long), random_scores(3))
        barred = [bool((row[[END, 8]] == -torch.inf).all()) for row in made]
        assert barred == [step < plan.min_new_tokens for plan in plans]
        assert torch.isfinite(made[:, :7]).all()


def test_each_row_begins_with_its_own_token():
    rows = RowScores([Plan(5, first=3), Plan(5), Plan(5, first=0)], start=1, ends=[END])
    scores = random_scores(3)
    made = rows(torch.zeros(3, 1, dtype=torch.long), scores.clone())
    assert made[0].argmax() == 3
    assert made[2].argmax() == 0
    assert (made[[0, 2]] == -torch.inf).sum() == 2 * (WORDS - 1)
    assert made[1].tolist() == scores[1].tolist()
    later = rows(torch.zeros(3, 2, dtype=torch.long), scores.clone())
    assert later.tolist() == scores.tolist()


def test_a_forced_end_comes_at_each_rows_last_place():
    rows = RowScores([Plan(2), Plan(3)], start=1, ends=[END], forced_end=END)
    for step, forced in ((0, []), (1, [0]), (2, [1])):
        made = rows(torch.zeros(2, 1 + step, dtype=torch.long), random_scores(2))
        assert [row for row in (0, 1) if (made[row] == -torch.inf).sum() == WORDS - 1] == forced
        assert all(made[row].argmax() == END for row in forced)


def test_with_beams_a_plan_counts_for_all_of_its_rows():
    plans = [Plan(5, num_beams=3, first=3), Plan(5, num_beams=3, first=4)]
    made = RowScores(plans, start=1, ends=[END])(torch.zeros(6, 1, dtype=torch.long), random_scores(6))
    assert made.argmax(1).tolist() == [3, 3, 3, 4, 4, 4]


def test_sampled_and_greedy_rows_stand_side_by_side():
    scores = random_scores(3)
    plans = [Plan(5), sampled(seed=(1, 0)), Plan(5)]
    made = scored(plans, torch.zeros(3, 2, dtype=torch.long), scores)
    assert made[[0, 2]].tolist() == scores[[0, 2]].tolist()
    assert (made[1] == -torch.inf).sum() == WORDS - 1


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def letters(tokens):
    return "".join(LETTERS[token] for token in tokens)


def ends_of(plans, rows, *, start=2, decode=letters):
    """Steps through the rows; how many new tokens each was given."""
    criterion = RowEnds(plans, start=start, ends=[25], decode=decode)
    ids = torch.tensor(rows)
    for length in range(start + 1, ids.shape[1] + 1):
        ended = criterion(ids[:, :length], None)
        assert ended.tolist() == (criterion.made > 0).tolist()
    return criterion.made.tolist()


def test_a_row_ends_at_its_own_most_end_token_or_stop_string():
    rows = [
        [0, 0, 1, 2, 3, 4, 5, 6],
        [0, 0, 1, 25, 3, 4, 5, 6],
        [0, 0, 1, 2, 3, 4, 5, 6],
        [2, 3, 4, 5, 2, 3, 5, 6],
        [0, 0, 1, 2, 3, 4, 5, 6],
    ]
    plans = [
        Plan(3),
        Plan(5),
        Plan(6, stops=("zz", "de")),
        Plan(6, stops=("cd",)),
        Plan(9),
    ]
    # What was in the prompt ends nothing.
    assert ends_of(plans, rows) == [3, 2, 4, 4, 0]


def test_a_stop_string_in_the_last_tokens_alone_must_be_in_the_whole_text_too():
    def decode(tokens):
        return "stop" if 0 < len(tokens) < 6 else letters(tokens)

    assert ends_of([Plan(20, stops=("s",))], [[0, 0, *range(1, 12)]], decode=decode) == [1]
    assert ends_of([Plan(20, stops=("s",))], [[0, 0, *[0] * 10]], start=2, decode=lambda t: letters(t)) == [0]


def test_beams_share_with_their_like_and_others_with_all_but_them():
    same = [
        Plan(5),
        Plan(
            max_new_tokens=9,
            min_new_tokens=3,
            temperature=0.5,
            top_k=3,
            seed=(4, 0),
            stops=("x",),
            repetition_penalty=1.5,
            first=4,
        ),
    ]
    assert len({plan.share_key for plan in same}) == 1
    apart = [
        same[0],
        Plan(5, no_repeat_ngram_size=2),
        Plan(5, num_beams=2),
        Plan(6, num_beams=2),
    ]
    apart += [Plan(5, num_beams=3), Plan(5, num_beams=2, length_penalty=2.0)]
    assert len({plan.share_key for plan in apart}) == len(apart)
    alike = [
        Plan(5, num_beams=2, min_new_tokens=1, first=7),
        Plan(5, num_beams=2, repetition_penalty=2.0),
    ]
    assert len({plan.share_key for plan in alike}) == 1


@pytest.mark.parametrize("most", [1, 4])
def test_a_row_that_ended_draws_on_without_harm(most):
    draw = Sampler([sampled(max_new_tokens=most)])
    assert drawn(draw, random_scores(1), 30) == drawn(draw, random_scores(1), 31)
