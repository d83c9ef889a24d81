"""Run by the Python of transformers 4.57: tiny models, and the varied texts by the pipelines that 5 dropped.

Usage: python -m tests.acceptance.older_pipelines FOLDER, from the root of the repository. Writes a folder a case, and
answers.json: by case the task, the requests and the pipeline's texts.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

from tests.generators import EOS, LANGUAGES, NEW, save_generator, save_nllb
from tests.varied import TEXTS

GREEDY = {"num_beams": 1, "max_new_tokens": NEW}
POSITIONS = {"max_position_embeddings": 512}
# No max_length: this pipeline makes 256 new tokens all the same, and our handlers take it at its word.
T5_TASKS = {
    "summarization": {
        "prefix": "summarize: ",
        "num_beams": 2,
        "min_length": 4,
        "early_stopping": True,
    },
    "translation_en_to_de": {"prefix": "translate English to German: ", "num_beams": 3},
}
NEWS = {"forced_bos_token_id": 5, "forced_eos_token_id": EOS, "length_penalty": 2.0, "no_repeat_ngram_size": 3}
NEWS |= {"early_stopping": True, "max_length": 14, "min_length": 6, "num_beams": 4}
NLLB = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}
PAIRS = list(itertools.permutations(LANGUAGES, 2))


def save_all(root):
    """The models, a folder each."""
    for name in ("bart", "news", "t5", "marian", "nllb"):
        (root / name).mkdir()
    bart = "BartForConditionalGeneration"
    save_generator(root / "bart", bart, **POSITIONS)
    save_generator(root / "news", bart, generation=NEWS, **POSITIONS)
    save_generator(root / "t5", "T5ForConditionalGeneration", task_specific_params=T5_TASKS)
    save_generator(root / "marian", "MarianMTModel", **POSITIONS)
    m2m = "M2M100ForConditionalGeneration"
    save_generator(root / "nllb", m2m, tokenizer=save_nllb, scale=12.0, seed=1, **POSITIONS, **NLLB)


CASES = [
    # case, folder, the pipeline's task, parameters for text number n, languages that the pipeline takes from its task
    ("greedy summaries", "bart", "summarization", lambda n: GREEDY, {}),
    ("summaries by the pipeline's own defaults", "bart", "summarization", lambda n: {"max_new_tokens": NEW}, {}),
    ("summaries by generation_config", "news", "summarization", lambda n: {}, {}),
    ("summaries by T5's parameters of the task", "t5", "summarization", lambda n: {"max_new_tokens": NEW}, {}),
    ("greedy translations of one pair", "marian", "translation", lambda n: GREEDY, {}),
    (
        "translations by T5's parameters of the pair",
        "t5",
        "translation_en_to_de",
        lambda n: {"max_new_tokens": NEW},
        {"src_lang": "en", "tgt_lang": "de"},
    ),
    ("greedy translations of twelve pairs", "nllb", "translation", lambda n: {**GREEDY, **languages(n)}, {}),
    ("beams in twelve pairs", "nllb", "translation", lambda n: {"max_new_tokens": NEW, **languages(n)}, {}),
]


def languages(number):
    """Another pair for each text."""
    return dict(zip(("src_lang", "tgt_lang"), PAIRS[number % len(PAIRS)], strict=True))


def main():
    from transformers import pipeline

    root = Path(sys.argv[1])
    save_all(root)
    answers = []
    for case, folder, task, wish, known in CASES:
        pipe = pipeline(task, model=str(root / folder), device="cpu")
        requests = [{"inputs": text, "parameters": {**wish(number), **known}} for number, text in enumerate(TEXTS)]
        made = [pipe(text, **wish(number))[0] for number, text in enumerate(TEXTS)]
        answers.append({"case": case, "folder": folder, "task": task, "requests": requests, "answers": made})
    (root / "answers.json").write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
