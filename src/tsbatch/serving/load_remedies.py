"""What to do about a load that failed: the commonest causes, recognised by what the exception says.

``remedy(text)`` looks the text through from top to bottom and takes the first cause that fits, so that a narrow
pattern stands above a wide one. The texts are those of Python, torch, transformers, safetensors and TorchServe.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

PIP_NAMES = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "fitz": "PyMuPDF",
    "google.protobuf": "protobuf",
    "PIL": "Pillow",
    "sentence_transformers": "sentence-transformers",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}
"""Import names whose package is called otherwise."""

Words = Callable[[re.Match[str]], str]


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of a failed load.

    Attributes:
        name: a short name for it.
        pattern: what the exception's text has when this is the cause.
        remedy: what to do, in one sentence; made from the match where it names what was found.
    """

    name: str
    pattern: re.Pattern[str]
    remedy: str | Words

    def answer(self, text: str) -> str | None:
        """The remedy when ``text`` has this cause."""
        match = self.pattern.search(text)
        if match is None:
            return None
        return self.remedy if isinstance(self.remedy, str) else self.remedy(match)


def cause_of(text: str) -> Cause | None:
    """The first known cause that this text shows."""
    return next((cause for cause in CAUSES if cause.pattern.search(text)), None)


def remedy(text: str) -> str | None:
    """What to do about a load that failed with this text; None when the cause is not a known one."""
    cause = cause_of(text)
    return cause.answer(text) if cause else None


def _package(match: re.Match[str]) -> str:
    module = match["module"]
    top = module.partition(".")[0]
    name = PIP_NAMES.get(module) or PIP_NAMES.get(top) or top
    return (
        f"the worker has no {module}: a package goes into requirements.txt (tsbatch package --requirements, and "
        f"install_py_dep_per_model=true in config.properties) or into the worker's environment (pip install {name}); "
        f"a file of your own into the archive (tsbatch package --extra {top}.py)"
    )


def _no_handler(match: re.Match[str]) -> str:
    return (
        f"the archive has no {match['handler']}.py, and TorchServe no handler of that name: "
        "package it again with --handler"
    )


def _classes(match: re.Match[str]) -> str:
    return (
        f"the weights were saved for shape [{match['saved']}] and the model is built with [{match['built']}]: build it "
        "with the number of classes that it was trained with (num_labels, out_features), or package the other weights"
    )


def _labels(match: re.Match[str]) -> str:
    return (
        f"the label file is not the one of these weights ({match[0]}): write one label for each output, "
        "in the order of training, and package it again"
    )


def _file(match: re.Match[str]) -> str:
    file = match["file"]
    if file.startswith("/") or file[1:2] == ":":
        return (
            f"{file} is a path of the machine where this was written: package the file (--extra) and open it under "
            'context.system_properties["model_dir"]'
        )
    return f"put {file} into the archive (tsbatch package --extra {file}); a handler's working folder is the archive"


def _dtype(match: re.Match[str]) -> str:
    return (
        f"two kinds of numbers meet ({match[0]}): convert the model or the input, .to(torch.float32) for example, "
        "or set tsbatch.dtype in model-config.yaml"
    )


def _cause(name: str, pattern: str, remedy: str | Words) -> Cause:
    return Cause(name, re.compile(pattern, re.IGNORECASE), remedy)


FEW_WORKERS = "start fewer workers (minWorkers), take a smaller dtype, or give the machine more memory"

CAUSES: tuple[Cause, ...] = (
    _cause("no handler file", r"No module named 'ts\.torch_handler\.(?P<handler>[^']+)'", _no_handler),
    _cause(
        "hidden module",
        r"No module named '(?P<module>[^']+)'; '(?P<top>[^']+)' is not a package",
        lambda match: f"a file {match['top']}.py in the archive hides the package {match['top']}: rename the file",
    ),
    _cause("missing package", r"No module named '(?P<module>[^']+)'", _package),
    _cause(
        "other version of a package",
        r"cannot import name '(?P<name>[^']+)' from '(?P<module>[^']+)'|has no attribute '__version__'",
        "this release of the package is another one than the handler was written for: "
        "pin the version that works in requirements.txt",
    ),
    _cause(
        "missing system library",
        r"(?P<library>lib\S+\.so\S*): cannot open shared object file",
        lambda match: f"the machine lacks the system library {match['library']}: install what brings it there",
    ),
    _cause(
        "torch and its companions",
        r"operator torchvision::|undefined symbol: _ZN\w*(c10|torch|at)|torchvision.*(incompatible|circular import)",
        "torchvision or another extension was built for a different torch: install the release that belongs to it",
    ),
    _cause(
        "numpy's binary interface",
        r"numpy\.dtype size changed|_ARRAY_API not found|compiled using NumPy 1\.x",
        "a package was built for another numpy: upgrade that package, or pin numpy to its major version",
    ),
    _cause(
        "trust_remote_code",
        r"trust_remote_code|requires you to execute the (configuration|modeling|\w+) file",
        "the model folder brings code of its own: read it, then set tsbatch.trust_remote_code: true in "
        "model-config.yaml (own handler: trust_remote_code=True)",
    ),
    _cause(
        "gated or unreachable hub",
        r"gated repo|couldn't connect to|we couldn't connect|OfflineModeIsEnabled|offline mode|LocalEntryNotFound|"
        r"is not a local folder and is not a valid model identifier|Max retries exceeded|401 Client Error|"
        r"Repository Not Found|Cannot reach https?://|Temporary failure in name resolution",
        "the handler asks a model hub: package the whole model folder (save_pretrained) and load it from "
        'context.system_properties["model_dir"]',
    ),
    _cause(
        "tokenizers or transformers too old",
        r"did not match any variant of untagged enum|does not recognize this architecture|"
        r"Unrecognized (model|configuration class)|Tokenizer class \w+ does not exist",
        "the folder was saved by a newer release: pip install -U transformers tokenizers in the worker's environment",
    ),
    _cause(
        "missing tokenizer files",
        r"Can't load tokenizer|tokenizer cannot be loaded|instantiate the backend tokenizer|"
        r"load(ing)? (the )?vocabulary|Unable to load vocabulary|(vocab\.txt|tokenizer\.json|spiece\.model)\b.*"
        r"(not found|missing|No such file)|No such file.*(vocab\.txt|tokenizer\.json|spiece\.model)",
        "save the tokenizer beside the model (tokenizer.save_pretrained(FOLDER)) and package the folder again",
    ),
    _cause(
        "another number of classes",
        r"size mismatch for .*?torch\.Size\(\[(?P<saved>[\d, ]*)\]\) from checkpoint, the shape in current model is "
        r"torch\.Size\(\[(?P<built>[\d, ]*)\]\)",
        _classes,
    ),
    _cause(
        "a prefix of DataParallel or Lightning",
        r"(Missing|Unexpected) key\(s\).*\"(module|model|_orig_mod)\.",
        "the weights were saved from a wrapped model: save model.module.state_dict() (torch.compile: "
        "model._orig_mod), or take the prefix off the keys",
    ),
    _cause(
        "another model",
        r"(Missing|Unexpected) key\(s\) in state_dict|does not fit \w+",
        "the weights belong to another class or version of the model: package the model code they were trained with",
    ),
    _cause(
        "damaged safetensors",
        r"SafetensorError|HeaderTooLarge|HeaderTooSmall|InvalidHeader|MetadataIncompleteBuffer|"
        r"incomplete metadata|deserializing header",
        "the file is cut off, or a git-lfs pointer of some hundred bytes: copy it again, and compare size and SHA-256",
    ),
    _cause(
        "damaged weights",
        r"PytorchStreamReader failed|failed finding central directory|archive is corrupted|unexpected EOF|"
        r"Ran out of input|not a ZIP archive|cannot be read as weights|not TorchScript",
        "the weights file is damaged or no such file: copy it again and compare its SHA-256; a git-lfs pointer has "
        "only some hundred bytes",
    ),
    _cause(
        "more than weights",
        r"UnpicklingError|weights_only|holds more than weights|Weights only load failed",
        "a whole pickled module could run any code: save the weights alone "
        "(safetensors.torch.save_file(model.state_dict(), FILE)) and build the module in the handler",
    ),
    _cause(
        "no GPU here",
        r"Attempting to deserialize object on a CUDA device|No CUDA GPUs are available|Found no NVIDIA driver|"
        r"not compiled with CUDA",
        "the weights or the handler ask for a GPU that this worker has not: load with map_location=device, and move "
        "to the device of the context alone",
    ),
    _cause(
        "GPU memory",
        r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_(NOT_INITIALIZED|ALLOC_FAILED)|OutOfMemoryError",
        f"the GPU has no room for another worker: {FEW_WORKERS}",
    ),
    _cause(
        "memory",
        r"MemoryError|DefaultCPUAllocator|Cannot allocate memory|exit code 137|killed for memory|memory ran out|"
        r"System out of memory",
        f"the machine has no room for the model: {FEW_WORKERS}; tsbatch check tells the peak",
    ),
    _cause(
        "disk full",
        r"No space left on device|Disk quota exceeded",
        "the disk is full: TorchServe unpacks each archive below its temporary folder (TEMP); make room, or use a "
        "folder in the model store in place of an archive",
    ),
    _cause(
        "permission",
        r"(PermissionError|Permission denied).*?'(?P<file>[^']+)'",
        lambda match: f"the server's user may not use {match['file']}: allow it, or write below a folder of its own",
    ),
    _cause("missing file", r"(FileNotFoundError|No such file or directory).*?'(?P<file>[^']+)'", _file),
    _cause(
        "no file in the archive",
        r"no such file in the archive|Missing the [\w.]+ file|No model weights could be loaded|"
        r"no file named .* found in directory",
        "package the archive again with that file (tsbatch package --model FOLDER, or --extra FILE)",
    ),
    _cause(
        "no class, or two",
        r"Expected only one class",
        "TorchServe takes the one class that the handler's file defines: move dataclasses, enums and helpers to "
        "another file, and write 'class MyHandler(Imported): pass' for an imported one",
    ),
    _cause(
        "no handle or initialize",
        r"Expect handle method in class|has no attribute '(initialize|handle)'",
        "the class must be a handler: let it inherit from tsbatch.BatchHandler, or from BaseHandler",
    ),
    _cause(
        "a name handle in the module",
        r"\bhandle\(\) (takes|missing|got)|'module' object is not callable|object is not callable|\(\) takes no arg",
        "TorchServe takes a name 'handle' in the handler's file, or after a colon, as a function handle(data, context) "
        "and no class then: rename it, or remove the colon",
    ),
    _cause(
        "a function called with nothing",
        r"'NoneType' object is not (iterable|subscriptable)|object of type 'NoneType' has no len",
        "if the handler is a function: TorchServe calls it once with data None to initialise it; return None then",
    ),
    _cause(
        "not Python",
        r"(SyntaxError|IndentationError|TabError)",
        "the worker's Python cannot read this file: correct the line, or use the Python it was written for",
    ),
    _cause(
        "dtype",
        r"expected scalar type \w+ but found \w+|expected m1 and m2 to have the same dtype(, but got: [^;\"]{0,40})?|"
        r"mat1 and mat2 must have the same dtype(, but got \w+ and \w+)?|"
        r"Input type \([^)]*\) and (weight|bias) type \([^)]*\)|"
        r"not implemented for '(Half|BFloat16|Char|Byte|Long)'",
        _dtype,
    ),
    _cause(
        "number of labels",
        r"\d+ labels?\b.{0,60}?\b\d+ (outputs?|classes|scores|logits)|"
        r"\d+ (outputs?|classes|scores|logits)\b.{0,60}?\b\d+ labels?",
        _labels,
    ),
    _cause(
        "broken JSON",
        r"JSONDecodeError|Expecting value: line|is not valid JSON|is no manifest of a model",
        "a JSON file in the archive is broken or empty: open it with python -m json.tool, and package it again",
    ),
    _cause(
        "broken YAML",
        r"yaml\.\w+\.\w*Error|mapping values are not allowed|cannot be read: .*(while (parsing|scanning))",
        "model-config.yaml is no YAML there: spaces in place of tabs, and a space after each colon",
    ),
    _cause(
        "encoding",
        r"UnicodeDecodeError",
        "a file is read in the worker's own encoding: open it with encoding='utf-8'",
    ),
    _cause(
        "crash in native code",
        r"exit code (139|134|132)|Segmentation fault|Illegal instruction",
        "native code crashed: a package built for another processor or another torch; run python -X faulthandler with "
        "the handler to see where",
    ),
    _cause(
        "an end without output",
        r"ended without output",
        "the process was killed (too little memory?) or left by os._exit; tsbatch check ARCHIVE shows exit code and "
        "peak memory",
    ),
)
"""Every known cause, narrow ones first."""
