"""`--fake-data`: rows for data sets that are not there, of the shapes that their descriptions say or the user has typed.

Those of `datasets.load_dataset`, and those of torchvision that give an image and its class. Values are of no meaning; texts and sequences of
free length are long, so that what truncates them truncates, and what does not is seen at a length that is noted.
"""

import contextlib
import functools
import inspect
import io
import re
import wave

from . import imports
from .guard import instead
from .notes import tell
from .session import fail, settings

ROWS, WORDS, ITEMS, SECONDS, SIDES = 512, 1024, 128, 10, (500, 375)
_TEXT = "the model reads what a person wrote of a long way home and of the sea at night".split()
# Of torchvision: mode and size of an image, classes, images for training and for testing.
_IMAGES = {
    "MNIST": ("L", (28, 28), 10, 60000, 10000),
    "FashionMNIST": ("L", (28, 28), 10, 60000, 10000),
    "KMNIST": ("L", (28, 28), 10, 60000, 10000),
    "USPS": ("L", (16, 16), 10, 7291, 2007),
    "CIFAR10": ("RGB", (32, 32), 10, 50000, 10000),
    "CIFAR100": ("RGB", (32, 32), 100, 50000, 10000),
    "SVHN": ("RGB", (32, 32), 10, 73257, 26032),
    "STL10": ("RGB", (96, 96), 10, 5000, 8000),
    "EuroSAT": ("RGB", (64, 64), 10, 27000, 27000),
    "Food101": ("RGB", (512, 512), 101, 75750, 25250),
    "Flowers102": ("RGB", SIDES, 102, 1020, 6149),
    "OxfordIIITPet": ("RGB", SIDES, 37, 3680, 3669),
    "ImageNet": ("RGB", SIDES, 1000, 1281167, 50000),
    # What is in a folder nobody knows.
    "ImageFolder": ("RGB", SIDES, 1000, 10000, 10000),
}


def follow():
    imports.when_imported("torchvision.datasets", _torchvision)
    imports.when_imported("datasets.load", _datasets)


# ---- torchvision -----------------------------------------------------------------------------------------------------------------------


class _Images:
    """What a data set becomes whose files are not there; it has its own class's attributes, too."""

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        from PIL import Image

        target = self.targets[range(len(self))[index]]
        image = Image.new(self._image[0], self._image[1], 128)
        if self._transforms[2] is not None:
            return self._transforms[2](image, target)
        first, second = (each or (lambda given: given) for each in self._transforms[:2])
        return first(image), second(target)

    def __repr__(self):
        return f"{type(self).__name__}, made by --fake-data"


def _torchvision(module):
    for name in _IMAGES:
        if hasattr(module, name):
            _or_made(getattr(module, name))


def _or_made(kind):
    has = inspect.signature(kind.__init__).parameters

    @instead("__init__", kind)
    def init(self, *arguments, **more):
        given = dict(zip(list(has)[1:], arguments)) | more
        try:
            return init.__wrapped__(self, **(given | ({"download": False} if "download" in has else {})))
        except (RuntimeError, OSError) as error:
            why = str(error).splitlines()[0]
        name = next(each.__name__ for each in type(self).__mro__ if each.__name__ in _IMAGES)
        *image, classes, training, testing = _IMAGES[name]
        trains = given["train"] if "train" in given else str(given.get("split", "train")).startswith("train")
        count = training if trains else testing
        self.__class__ = type(type(self).__name__, (type(self),), {each: function for each, function in vars(_Images).items() if callable(function)})
        self.root, self._image, self._transforms = given.get("root"), image, [given.get(each) for each in ("transform", "target_transform", "transforms")]
        self.transform, self.target_transform, _ = self._transforms
        self.classes = [f"class {number}" for number in range(classes)]
        self.class_to_idx = {each: number for number, each in enumerate(self.classes)}
        self.targets = [number % classes for number in range(count)]
        self.samples = self.imgs = [(f"{number}.jpg", target) for number, target in enumerate(self.targets)] if name == "ImageFolder" else None
        sides = "x".join(map(str, image[1]))
        tell(f"--fake-data: {count} images of {sides} ({image[0]}) and {classes} classes in place of torchvision's {name} at {self.root} ({why})")


# ---- datasets --------------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _offline():
    import datasets
    from huggingface_hub import constants

    places = [(datasets.config, "HF_HUB_OFFLINE"), (datasets.config, "HF_DATASETS_OFFLINE"), (constants, "HF_HUB_OFFLINE")]
    before = [(place, name, getattr(place, name)) for place, name in places if hasattr(place, name)]
    try:
        for place, name, _ in before:
            setattr(place, name, True)
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


def _datasets(module):
    load, describe = module.load_dataset, module.load_dataset_builder

    @instead("load_dataset", module)
    def load_dataset(path, *arguments, **more):
        try:
            with _offline():
                return load(path, *arguments, **more)
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        given = dict(zip(list(inspect.signature(load).parameters)[1:], arguments)) | more
        typed = filter(None, map(str.strip, settings.fake_data.split(",")))
        info, columns = None, dict(each.split(":", 1) if ":" in each else (each, "string") for each in typed)
        rows = int(columns.pop("rows", ROWS))
        if not columns:
            has = inspect.signature(describe).parameters
            try:
                info = describe(path, **{name: value for name, value in given.items() if name in has and name != "save_infos"}).info
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
        features, sizes, words = (_typed(columns) if columns else (getattr(info, "features", None), {}, {}))
        if not features:
            fail(
                f"--fake-data: {path} is not there and its columns are not known ({why}); "
                "write them, as in --fake-data=text:string,label:class10,image:image224x224"
            )
        return _made(path, features, sizes, words, info, rows, given)


def _typed(columns):
    """Features of what was typed, sizes of images and the lengths of texts."""
    from datasets import ClassLabel, Features, Image, Sequence, Value

    features, sizes, words = {}, {}, {}
    for name, kind in columns.items():
        kind, numbers = re.match(r"[a-z]*", kind)[0], [int(number) for number in re.findall(r"\d+", kind)]
        if kind == "image":
            sizes[name] = (numbers * 2)[:2] if numbers else SIDES
        if kind == "string" and numbers:
            words[name] = numbers[0]
        made = {
            "string": lambda: Value("string"), "int": lambda: Value("int64"), "float": lambda: Value("float32"), "bool": lambda: Value("bool"),
            "class": lambda: ClassLabel(num_classes=(numbers or [2])[0]), "image": Image,
            "list": lambda: Sequence(Value("int64"), length=(numbers or [ITEMS])[0]),
        }.get(kind)  # fmt: skip
        if made is None:
            fail(f"--fake-data: '{name}:{kind}' is no column; write string, string200 (words), int, float, bool, class10, image224x224 or list128")
        features[name] = made()
    return Features(features), sizes, words


def _made(path, features, sizes, words, info, rows, given):
    import datasets

    known = {name: getattr(split, "num_examples", 0) or rows for name, split in (getattr(info, "splits", None) or {}).items()}

    def split(name):
        name = re.split(r"[\[+]", str(name))[0]
        count = min(known.get(name, rows), rows)
        made = [{key: _value(feature, number, key, sizes, words) for key, feature in features.items()} for number in range(count)]
        made = datasets.Dataset.from_list(made, features=features)
        return made.to_iterable_dataset() if given.get("streaming") else made

    lengths = f"texts of {sorted(set(words.values()))[0] if words else WORDS} words, lists of {ITEMS} where nothing says their length"
    tell(f"--fake-data: at most {rows} rows ({', '.join(features)}) in each split in place of {path}, which is not there: {lengths}")
    if isinstance(given.get("split"), (list, tuple)):
        return [split(name) for name in given["split"]]
    if given.get("split") is not None:
        return split(given["split"])
    kind = datasets.IterableDatasetDict if given.get("streaming") else datasets.DatasetDict
    return kind({name: split(name) for name in known or ("train", "validation", "test")})


def _value(feature, number, key, sizes, words):
    def inner(feature, number, key=key):
        return _value(feature, number, key, sizes, words)

    kind = type(feature).__name__
    if isinstance(feature, dict):
        return {name: inner(each, number, name) for name, each in feature.items()}
    if isinstance(feature, list) or kind in ("Sequence", "List", "LargeList"):
        of, length = (feature[0], -1) if isinstance(feature, list) else (feature.feature, getattr(feature, "length", -1))
        # Of a dictionary, as messages are, some; of numbers more.
        count = length if length > 0 else 4 if isinstance(of, dict) or getattr(of, "dtype", "") == "string" else ITEMS
        items = [inner(of, at) for at in range(count)]
        return {name: [item[name] for item in items] for name in of} if kind == "Sequence" and isinstance(of, dict) else items
    if kind == "ClassLabel":
        return number % feature.num_classes
    if kind == "Image":
        return {"bytes": _picture(tuple(sizes.get(key, SIDES))), "path": None}
    if kind == "Audio":
        return {"bytes": _sound(feature.sampling_rate or 16000), "path": None}
    if kind in ("Translation", "TranslationVariableLanguages"):
        return {language: inner(None, number) for language in feature.languages or ("en", "de")}
    if kind.startswith("Array"):
        return functools.reduce(lambda made, side: [made] * (side or ITEMS), reversed(feature.shape), 0)
    dtype = "string" if feature is None else getattr(feature, "dtype", "string")
    if "string" in dtype:
        # Of a conversation.
        sides = {"role": ("user", "assistant"), "from": ("human", "gpt")}.get(key)
        length = words.get(key, WORDS)
        return sides[number % 2] if sides else " ".join((_TEXT * (length // len(_TEXT) + 1))[:length])
    return False if dtype == "bool" else 0.5 if "float" in dtype else number % 2


@functools.cache
def _picture(size):
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", size, (128, 128, 128)).save(file, "PNG")
    return file.getvalue()


@functools.cache
def _sound(rate):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, rate, 0, "NONE", ""))
        sound.writeframes(bytes(2 * rate * SECONDS))
    return file.getvalue()
