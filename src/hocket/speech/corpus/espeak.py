"""espeak-ng through ctypes: audio, and when each phoneme was spoken.

The library comes with the wheel `espeakng-loader` (the extra `hocket[corpus]`). espeak-ng is GPL-3:
nothing outside `hocket.speech.corpus` imports this module at load time.

The library keeps state that cannot be reset (the phase of its pitch flutter, its noise source), so
an utterance depends a little on the utterances before it. It also seeds some of its noise with the
time of day, so the seed is set here. To get the same audio again, the same list of utterances must
be spoken in a fresh process, as `build.py` does.
"""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hocket.speech.errors import SpeechError

_SYNCHRONOUS: Final = 2
_PHONEME_EVENTS: Final = 1
_EVENT_END, _EVENT_WORD, _EVENT_PHONEME = 0, 1, 7
_RATE, _PITCH, _RANGE = 1, 3, 4
_UTF8: Final = 1
_STRESS: Final = "',%=|"  # marks before a phoneme's name that are not part of it
_VARIANT: Final = "0123456789#-"  # marks after it
PAUSE: Final = "SIL"

# Robots, whispers and demons: nobody speaks to a recogniser with such a voice.
_LEFT_OUT: Final = frozenset(
    [
        "Demonic",
        "UniRobot",
        "anikaRobot",
        "whisper",
        "whisperf",
        "croak",
        "fast",
        "shelby",
        "Tweaky",
        "AnxiousAndy",
    ]
)


class _Name(c.Union):
    _fields_ = [("number", c.c_int), ("name", c.c_char_p), ("string", c.c_char * 8)]


class _Event(c.Structure):
    _fields_ = [
        ("type", c.c_int),
        ("unique_identifier", c.c_uint),
        ("text_position", c.c_int),
        ("length", c.c_int),
        ("audio_position", c.c_int),
        ("sample", c.c_int),
        ("user_data", c.c_void_p),
        ("id", _Name),
    ]


@dataclass(frozen=True, slots=True)
class Phone:
    """One phoneme as spoken: its name, its first sample, and the number of the word it is in."""

    name: str
    sample: int
    word: int


@dataclass(frozen=True, slots=True)
class Spoken:
    """An utterance: int16 samples at the synthesiser's rate, and its phonemes with times."""

    samples: NDArray[np.int16]
    phones: list[Phone]


class Espeak:
    """The synthesiser. One per process: the library is global."""

    def __init__(self) -> None:
        loader = _loader()
        self._library = c.CDLL(loader.get_library_path())
        data = Path(loader.get_data_path())
        folder = data.parent if data.name == "espeak-ng-data" else data
        self._library.espeak_Initialize.argtypes = [c.c_int, c.c_int, c.c_char_p, c.c_int]
        self.sample_rate: int = self._library.espeak_Initialize(
            _SYNCHRONOUS, 0, str(folder).encode(), _PHONEME_EVENTS
        )
        if self.sample_rate <= 0:
            raise SpeechError(
                f"espeak-ng did not start (code {self.sample_rate}); its data should be in "
                f"{data}: reinstall with pip install --force-reinstall espeakng-loader"
            )
        self._library.espeak_ng_SetRandSeed.argtypes = [c.c_long]
        self._library.espeak_ng_SetRandSeed(1)  # else it is the time of day
        callback = c.CFUNCTYPE(c.c_int, c.POINTER(c.c_short), c.c_int, c.POINTER(_Event))
        self._callback = callback(self._receive)  # kept alive: the library holds only a pointer
        self._library.espeak_SetSynthCallback(self._callback)
        self._chunks: list[NDArray[np.int16]] = []
        self._phones: list[Phone] = []
        self._word = -1

    def say(self, text: str, voice: str, *, rate: int, pitch: int, pitch_range: int = 50) -> Spoken:
        """Speak `text`; `voice` is ACCENT+VARIANT, `rate` in words per minute, `pitch` 0 to 99."""
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise SpeechError(f"espeak-ng has no voice {voice!r}")
        for parameter, value in ((_RATE, rate), (_PITCH, pitch), (_RANGE, pitch_range)):
            self._library.espeak_SetParameter(parameter, int(value), 0)
        self._chunks, self._phones, self._word = [], [], -1
        data = text.encode() + b"\0"
        self._library.espeak_Synth(
            c.c_char_p(data), c.c_size_t(len(data)), 0, 1, 0, _UTF8, None, None
        )
        samples = np.concatenate(self._chunks) if self._chunks else np.zeros(0, np.int16)
        return Spoken(samples, self._phones)

    def _receive(self, wav: Any, count: int, events: Any) -> int:
        if wav and count > 0:
            self._chunks.append(np.ctypeslib.as_array(wav, (count,)).copy())
        for event in events:
            if event.type == _EVENT_END:
                break
            if event.type == _EVENT_WORD:
                self._word += 1
            elif event.type == _EVENT_PHONEME:
                name = _phone_name(event.id.string.decode("utf8", "replace"))
                if name:
                    self._phones.append(Phone(name, event.sample, self._word))
        return 0


def _phone_name(name: str) -> str:
    """Return the phoneme without marks of stress and variant (aI2 is aI, r- is r); may be empty."""
    if name.startswith("_"):
        return PAUSE
    plain = name.lstrip(_STRESS).strip(";")
    return plain.rstrip(_VARIANT) or plain


def _loader() -> Any:
    try:
        import espeakng_loader
    except ImportError as error:
        raise SpeechError(
            "the synthesiser is not installed: pip install 'hocket[corpus]'"
        ) from error
    return espeakng_loader


def variants() -> dict[str, list[str]]:
    """Return the names of the voice variants by sex ('f', 'm')."""
    found: dict[str, list[str]] = {"f": [], "m": []}
    for path in sorted(Path(_loader().get_data_path(), "voices", "!v").iterdir()):
        if path.name in _LEFT_OUT or path.name.startswith("robosoft"):
            continue
        lines = path.read_text(errors="replace").lower().splitlines()
        sexes = [line.split()[1] for line in lines if line.startswith("gender")]
        found["f" if sexes == ["female"] else "m"].append(path.name)  # unmarked ones are male
    return found


def pronounce(words: list[str], accent: str = "gmw/en-US") -> dict[str, tuple[str, ...]]:
    """Return espeak-ng's phonemes of each word when it is spoken alone."""
    synthesiser = Espeak()
    spoken = {word: synthesiser.say(word, accent, rate=175, pitch=50) for word in words}
    return {
        word: tuple(p.name for p in said.phones if p.name != PAUSE) for word, said in spoken.items()
    }
