"""What generation_config.json may say: settings that each request may override, settings for all, and refusals.

Each field of transformers' GenerationConfig is in one of four groups. A plan (``token_selection.py``) has those that
differ between requests; ``generate`` applies those that depend only on the tokens so far (``bad_words_ids``,
``suppress_tokens`` and so on); those that only change the speed or the form of what ``generate`` returns are reset; all
others would change the answers, and are refused.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from tsbatch.errors import LoadError
from tsbatch.tasks.generation.parameters import GenerationParameters

PER_ROW: Final = GenerationParameters.model_fields.keys() - {"seed", "stop"} | {
    "num_return_sequences",
    "stop_strings",
    "forced_bos_token_id",
    "forced_eos_token_id",
}
"""Settings that a plan has for its row, and that the configuration of a whole ``generate`` must not have."""
RESET: Final = (
    "return_dict_in_generate",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    # These guess tokens ahead, and keep only those that the model itself would have chosen.
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "is_assistant",
    "assistant_early_exit",
    "speculation_type",
    "use_mtp",
    "low_memory",
)
"""Settings that do not change the text."""
REFUSED: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "constraints": ([],),
        "diversity_penalty": (0,),
        "dola_layers": (),
        "epsilon_cutoff": (0,),
        "eta_cutoff": (0,),
        "exponential_decay_length_penalty": (),
        "force_words_ids": ([],),
        "guidance_scale": (1,),
        "max_time": (),
        "num_beam_groups": (1,),
        "num_return_sequences": (1,),
        "penalty_alpha": (0,),
        "token_healing": (False,),
        "top_h": (),
        "typical_p": (1,),
        "watermarking_config": (),
    }
)
"""Settings that would change the text, with the values besides None that would not."""
COMMON: Final = (
    "bad_words_ids",
    "begin_suppress_tokens",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "remove_invalid_values",
    "renormalize_logits",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
)
"""Settings that ``generate`` applies, the same for all requests."""
SPEECH_REFUSED: Final = ("max_time", "num_return_sequences", "stop_strings")
"""The same for speech, where one configuration holds for all requests and ``generate`` itself applies the others."""


def check_supported(config: Any, names: Any = REFUSED, *, file: str = "generation_config.json") -> None:
    """Check that a generation config asks for nothing that would be ignored.

    Args:
        config: a GenerationConfig, or a mapping of its fields.
        names: the fields that are not supported.
        file: the file of the model folder that it comes from, for the message.

    Raises:
        LoadError: it does; names the field.
    """
    for name in names:
        value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
        if value is not None and value not in REFUSED.get(name, ()):
            raise LoadError(f"{file}: {name}: {value!r} is not supported, and without it the texts would be others")


def neutral(config: Any) -> Any:
    """Return a copy of a GenerationConfig without what plans have, and without what does not change the text."""
    copied, fresh = copy.deepcopy(config), type(config)()
    for name in (*PER_ROW, *RESET):
        setattr(copied, name, getattr(fresh, name, None))
    return copied


def padding_matters(config: Any, padding: int) -> str | None:
    """Return the field of a GenerationConfig that would take padding for a part of the text; None if there is none.

    Args:
        config: a GenerationConfig.
        padding: the token to pad with.
    """
    if (getattr(config, "encoder_repetition_penalty", None) or 1.0) != 1.0:
        return "encoder_repetition_penalty"
    if getattr(config, "encoder_no_repeat_ngram_size", None):
        return "encoder_no_repeat_ngram_size"
    if any(padding in words[:-1] for words in getattr(config, "bad_words_ids", None) or ()):
        return "bad_words_ids"
    biased = getattr(config, "sequence_bias", None) or ()
    sequences = biased if isinstance(biased, Mapping) else [entry[0] for entry in biased]
    return "sequence_bias" if any(padding in words[:-1] for words in sequences) else None
