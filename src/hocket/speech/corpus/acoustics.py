"""Room responses and noise for synthetic corpora, all drawn from a random generator.

Signals are float64 on the int16 scale. A room's direct path comes first and has height 1, so
reverberation does not move the phonemes in time.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Signal: TypeAlias = NDArray[np.float64]

FULL_SCALE = 32767.0
CLOSURE = 0.01  # of the peak (-40 dB): quieter samples are the closure of a stop consonant
ACTIVE = 0.02  # of the peak: quieter samples are pauses and do not count as speech level


def coloured_noise(rng: np.random.Generator, num_samples: int, sample_rate: int) -> Signal:
    """Return white noise with a random tilt, a few resonances and a slow swell, at unit power."""
    spectrum = np.fft.rfft(rng.normal(size=num_samples))
    hertz = np.fft.rfftfreq(num_samples, 1 / sample_rate)
    gain = (np.maximum(hertz, 50.0) / 1000.0) ** (-rng.uniform(0.0, 1.0))
    for _ in range(rng.integers(1, 5)):
        centre = rng.uniform(100.0, 0.45 * sample_rate)
        width = rng.uniform(30.0, 400.0)
        gain *= 1.0 + rng.uniform(1.0, 8.0) * np.exp(-(((hertz - centre) / width) ** 2))
    noise = np.fft.irfft(spectrum * gain, num_samples)
    seconds = np.arange(num_samples) / sample_rate
    swell = 1.0 + rng.uniform(0.0, 0.6) * np.sin(
        2 * np.pi * rng.uniform(0.1, 2.0) * seconds + rng.uniform(0, 2 * np.pi)
    )
    return _unit_power(noise * swell)


def babble(rng: np.random.Generator, voices: list[Signal], num_samples: int) -> Signal:
    """Return several voices talking at once, each repeated from a random point, at unit power."""
    total = np.zeros(num_samples)
    for voice in voices:
        repeats = -(-num_samples // len(voice)) + 1
        start = int(rng.integers(len(voice)))
        total += _unit_power(np.tile(voice, repeats)[start : start + num_samples])
    return _unit_power(total)


def room(rng: np.random.Generator, sample_rate: int) -> Signal:
    """Return a room's response: the direct path, then a diffuse tail that decays by 60 dB in RT60.

    RT60 runs from 0.15 s (a furnished office) to 0.6 s (a lecture room).
    """
    rt60 = rng.uniform(0.15, 0.6)
    length = int(rt60 * sample_rate)
    seconds = np.arange(length) / sample_rate
    tail = rng.normal(size=length) * 10.0 ** (-3.0 * seconds / rt60)
    tail[: int(rng.uniform(0.001, 0.01) * sample_rate)] = 0.0  # until the first reflection
    direct_to_reverberant_db = rng.uniform(0.0, 12.0)
    tail *= 10.0 ** (-direct_to_reverberant_db / 20) / np.sqrt(np.sum(tail**2))
    tail[0] = 1.0
    return tail


def speech_power(x: Signal) -> float:
    """Return the mean power of the samples that are speech, leaving out pauses (see `ACTIVE`)."""
    loud = x[np.abs(x) > ACTIVE * np.abs(x).max()] if len(x) else x
    return float(np.mean(loud**2)) if len(loud) else 0.0


def silence_before(x: Signal, at: int, longest: int = 2000, step: int = 40) -> int:
    """Return where the silence that ends at sample `at` begins; `at` itself if there is none."""
    quiet = CLOSURE * float(np.abs(x).max()) if len(x) else 0.0
    start = at - step  # the release may be marked a little late
    while start - step >= max(0, at - longest) and np.abs(x[start - step : start]).max() < quiet:
        start -= step
    return start if start < at - step else at


def add_noise(x: Signal, noise: Signal, snr_db: float) -> Signal:
    """Add unit-power `noise` (as long as `x`) at a signal-to-noise ratio."""
    mixed: Signal = x + noise * np.sqrt(speech_power(x)) * 10.0 ** (-snr_db / 20)
    return mixed


def set_peak(x: Signal, peak: float) -> Signal:
    """Scale the signal so that its highest sample is `peak` times full scale."""
    highest = np.abs(x).max() if len(x) else 0.0
    return x * (peak * FULL_SCALE / highest) if highest > 0 else x


def _unit_power(x: Signal) -> Signal:
    power = float(np.mean(x**2))
    return x / np.sqrt(power) if power > 0 else x
