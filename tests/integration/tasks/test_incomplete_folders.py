"""Model folders that lack something: what can be made good is, and the rest is refused in one line that says what."""

from __future__ import annotations

import importlib
import json
import shutil

import pytest
import transformers

from tests.classifiers import ask, load
from tests.generators import save_generator
from tests.tiny_tasks import TINY
from tsbatch.errors import LoadError
from tsbatch.tasks.shared.task_handler import TaskHandler

OLD = transformers.__version__.startswith("4.")
TASKS = [task for task in TINY if task != "tensor"]
LABELLED = [
    "text-classification",
    "token-classification",
    "reranking",
    "image-classification",
    "object-detection",
    "image-segmentation",
    "audio-classification",
]
TOKENIZED = [task for task in TASKS if not task.startswith(("image", "object", "audio"))]
PROCESSED = [task for task in TASKS if task not in TOKENIZED] + ["speech-recognition"]
GENERATING = ["summarization", "translation", "text-generation"]


def handler_of(task):
    module = importlib.import_module(f"tsbatch.tasks.{task.replace('-', '_')}")
    [found] = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, TaskHandler) and value.__module__ == module.__name__
    ]
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The tiny folder of a task, saved once."""
    folders = {}

    def of(task):
        if task not in folders:
            folders[task] = tmp_path_factory.mktemp(task)
            TINY[task].save(folders[task])
        return folders[task]

    return of


@pytest.fixture
def copy(saved, tmp_path):
    def of(task):
        return shutil.copytree(saved(task), tmp_path / task)

    return of


def edit(folder, **keys):
    """config.json with these keys; without those that are None."""
    config = json.loads((folder / "config.json").read_text()) | keys
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def remove(folder, *patterns):
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.unlink()
    return folder


def refusal(task, folder, **options):
    with pytest.raises(LoadError) as caught:
        load(handler_of(task), folder, batch_size=1, **options)
    message = str(caught.value)
    assert "\n" not in message, "one line"
    assert " raised " not in message, f"a bare exception: {message}"
    return message


@pytest.mark.parametrize("task", TASKS)
def test_config_json(copy, task):
    folder = copy(task)
    config = folder / "config.json"
    for text in ("{}", "[]", "null"):
        config.write_text(text)
        assert refusal(task, folder) == "config.json: it has no model_type; pack a folder saved by save_pretrained"
    config.write_text('{"model_type": ')
    assert refusal(task, folder).startswith("config.json: broken JSON: ")


@pytest.mark.parametrize("task", TASKS)
def test_what_is_no_table_of_classes(copy, task):
    folder = copy(task)
    expected = 'config.json: id2label: expected numbers and names, as {"0": "cat", "1": "dog"}'
    for wrong in (["a", "b"], {"first": "a"}):
        assert refusal(task, edit(folder, id2label=wrong)) == expected


@pytest.mark.parametrize("task", LABELLED)
def test_label2id_alone_names_the_classes(copy, task):
    folder = copy(task)
    config = json.loads((folder / "config.json").read_text())
    names = config.get("id2label") or {str(place): f"LABEL_{place}" for place in range(config.get("num_labels", 2))}
    handler = load(handler_of(task), edit(folder, id2label=None, label2id={f"{n}!": int(i) for i, n in names.items()}))
    if task != "reranking":
        assert handler.labels() == [f"{names[str(place)]}!" for place in range(len(names))]
    expected = 'config.json: label2id: expected names and numbers, as {"cat": 0, "dog": 1}'
    assert refusal(task, edit(folder, label2id={"cat": "first"})) == expected
    assert refusal(task, edit(folder, label2id=["cat"])) == expected


@pytest.mark.parametrize("task", LABELLED)
def test_no_classes_at_all(copy, task):
    """transformers takes two for granted, and says of the weights only that it will not ignore them."""
    message = refusal(task, edit(copy(task), id2label=None, label2id=None))
    assert message.startswith("config.json gives ")
    assert "and the archive's weights have " in message
    assert message.endswith("; id2label has to name the classes that it was trained for")
    assert OLD or "[2" in message or "[3" in message


def test_an_image_model_of_no_class(copy):
    message = refusal("image-classification", edit(copy("image-classification"), id2label={}, label2id=None))
    assert message.startswith("config.json: id2label: the model has no class")


def test_weights_of_another_size(copy):
    folder = copy("text-embedding")
    words = json.loads((folder / "config.json").read_text())["vocab_size"]
    message = refusal("text-embedding", edit(folder, vocab_size=17))
    saved = "another" if OLD else f"[{words}, 32]"
    assert message.startswith("config.json gives embeddings.word_embeddings.weight the shape [17, 32], and the archive")
    assert message.endswith(f"weights have {saved}; they are of another model")


@pytest.mark.parametrize("task", TOKENIZED)
def test_no_tokenizer(copy, task):
    message = refusal(task, remove(copy(task), "tokenizer*", "vocab*", "merges*", "special*", "spiece*"))
    assert message.startswith("the tokenizer cannot be loaded")
    assert " has none of " in message
    assert "tokenizer.json" in message


@pytest.mark.parametrize("task", TOKENIZED)
def test_a_broken_tokenizer_is_named(copy, task):
    folder = copy(task)
    (folder / "tokenizer_config.json").write_text('{"half')
    assert "tokenizer_config.json: broken JSON: " in refusal(task, folder)


@pytest.mark.parametrize("task", PROCESSED)
def test_no_preprocessor_config(copy, task):
    folder = copy(task)
    for text, part in (
        ("[]", "preprocessor_config.json: expected an object"),
        ("{", "preprocessor_config.json: broken"),
    ):
        (folder / "preprocessor_config.json").write_text(text)
        assert part in refusal(task, folder)
    message = refusal(task, remove(folder, "preprocessor_config.json"))
    assert "the archive: it has none of preprocessor_config.json, processor_config.json; pack the whole" in message


@pytest.mark.parametrize("task", GENERATING)
def test_generation_config(copy, task):
    """transformers passes over a broken one without a word."""
    folder = copy(task)
    load(handler_of(task), remove(folder, "generation_config.json"), batch_size=1)
    (folder / "generation_config.json").write_text("{")
    assert refusal(task, folder).startswith("generation_config.json: broken JSON: ")


def test_a_decoder_that_does_not_know_what_to_begin_with(tmp_path):
    save_generator(tmp_path, "T5ForConditionalGeneration")
    (tmp_path / "generation_config.json").write_text("{}")
    load(handler_of("translation"), tmp_path, batch_size=1)  # as config.json has it
    edit(tmp_path, decoder_start_token_id=None)
    if OLD:  # where each config has such a key, and it says null
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "decoder_start_token_id": None}))
    assert refusal("translation", tmp_path).startswith("generation_config.json: no decoder_start_token_id")


WRONG = [
    ("text-embedding", "speech-recognition", "takes input_values"),
    ("text-classification", "summarization", "no weights for classification_head"),
    ("text-classification", "image-classification", "no model for text-classification of model_type vit"),
    ("token-classification", "text-classification", "was saved as BertForSequenceClassification, and token-class"),
    ("question-answering", "text-generation", "no weights for qa_outputs"),
    ("fill-mask", "text-generation", "no model for fill-mask of model_type llama"),
    (
        "zero-shot-classification",
        "text-classification",
        "none of the model's labels, LABEL_0, LABEL_1, LABEL_2, ",
    ),
    ("summarization", "fill-mask", "no model for summarization of model_type bert"),
    ("translation", "audio-classification", "no model for translation of model_type wav2vec2"),
    ("text-generation", "text-embedding", "no weights for cls.predictions"),
    ("text-generation", "fill-mask", "was saved as BertForMaskedLM, and text-generation needs BertLMHeadModel"),
    ("image-classification", "image-segmentation", "no weights for classifier"),
    ("image-embedding", "fill-mask", "takes input_ids"),
    ("object-detection", "image-classification", "no model for object-detection of model_type vit"),
    ("image-segmentation", "object-detection", "'YolosForObjectDetection' is not a segmentation model"),
    ("speech-recognition", "text-embedding", "no model for speech-recognition of model_type bert"),
    ("audio-classification", "speech-recognition", "no weights for classifier"),
    ("tensor", "text-embedding", "no TorchScript"),
]


@pytest.mark.parametrize("task, other, part", WRONG)
def test_a_folder_for_another_task(saved, task, other, part):
    assert part in refusal(task, saved(other))


def test_a_processor_that_makes_other_sizes(copy):
    folder = copy("image-embedding")
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**processor, "size": {"height": 48, "width": 48}}))
    message = refusal("image-embedding", folder)
    assert message.startswith("the model does not take prepared images of shape [1, 3, 48, 48]: ")


def test_a_tokenizer_of_another_model(copy, saved):
    folder = remove(copy("text-classification"), "tokenizer*")
    small = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokenizer = json.loads((saved("text-classification") / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {word: place + small if len(word) == 1 else place for word, place in words.items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(saved("text-classification") / "tokenizer_config.json", folder)
    message = refusal("text-classification", folder)
    assert message.endswith(f"and the model's last is {small - 1}: they do not belong together")


def one_by_one(task, handler):
    return [ask(handler, [body]) for body in TINY[task].good]


@pytest.mark.parametrize("task", ["text-embedding", "token-classification", "question-answering", "fill-mask"])
def test_without_a_padding_token(copy, task):
    """A BERT does not need one: what fills up is masked."""
    folder = copy(task)
    expected = one_by_one(task, load(handler_of(task), folder))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():
            settings = json.loads((folder / name).read_text())
            settings.pop("pad_token", None)
            (folder / name).write_text(json.dumps(settings))
    handler = load(handler_of(task), folder)
    assert handler.tokenizer.pad_token_id is None
    assert one_by_one(task, handler) == expected


def test_the_warm_up_tells_what_was_wrong(copy):
    folder = copy("image-classification")
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**processor, "size": {"height": 48, "width": 48}}))
    with pytest.raises(LoadError, match="the warm-up example was answered with 500: inference raised ValueError: "):
        load(handler_of("image-classification"), folder)
