"""Read DICOM slices with pydicom. The slices of a series make one volume."""

from __future__ import annotations

import importlib
import io
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastdata.arrays.readers import Opened
from fastdata.errors import CodecError
from fastdata.remote.path import AnyPath

__all__ = ["open_array", "series_of"]

Array = np.ndarray[Any, np.dtype[Any]]

TAGS = (
    "SeriesInstanceUID Rows Columns NumberOfFrames SamplesPerPixel BitsAllocated PixelRepresentation RescaleSlope RescaleIntercept "
    "ModalityLUTSequence SharedFunctionalGroupsSequence ImagePositionPatient ImageOrientationPatient InstanceNumber"
).split()
HEADER_BYTES = 64 << 20  # of all that is not pixels
LARGEST_PIXEL = 4  # bytes
BLOCK = 1 << 20
UNEVEN = 1.5  # largest ratio of two gaps between slices; at 2, one slice is missing


def series_of(path: AnyPath) -> str:
    """Return the series that a slice belongs to.

    Raises:
        CodecError: if it is not a DICOM file, or has no image.
    """
    return str(_header(path).SeriesInstanceUID)


def open_array(paths: list[AnyPath]) -> Opened:
    """Open a series as [slice, row, column], or a file of several frames as [frame, row, column].

    Slices are sorted by their position along the normal of their plane, or by their number if they have no positions. The rescale
    slope and intercept are applied in double precision; the result is int16 if both are whole numbers and all values fit, else
    float32.
    """
    headers = {path: _header(path) for path in paths}
    first, *others = headers.values()
    for header in others:
        if _layout(header) != _layout(first):
            raise CodecError(f"its slices differ: {_layout(first)} and {_layout(header)} (rows, columns, bits)", "unequal-slices")
    rows, columns, bits, signed = _layout(first)
    frames = _frames(first)
    if others and frames:
        raise CodecError("several files of several frames in one series", "unsupported")
    ordered = [path for path, _ in _sorted(list(headers.items()))] if others else paths
    scales = {_scale(header) for header in headers.values()}
    dtype = np.dtype(f"{'i' if signed else 'u'}{bits // 8}")
    if scales != {(1.0, 0.0)}:
        whole = all(value.is_integer() for scale in scales for value in scale)
        dtype = np.dtype(np.int16 if whole else np.float32)
    shape = (frames or len(paths), rows, columns)
    return Opened(shape, dtype, lambda: _read(ordered, shape, dtype, [_scale(headers[path]) for path in ordered]))


def _read(paths: list[AnyPath], shape: tuple[int, ...], dtype: np.dtype[Any], scales: list[tuple[float, float]]) -> Array:
    scaled = set(scales) != {(1.0, 0.0)}
    out = np.empty(shape, np.int64 if scaled and dtype.kind == "i" else dtype)
    most = HEADER_BYTES + LARGEST_PIXEL * out.size // len(paths)
    for place, (path, (slope, intercept)) in enumerate(zip(paths, scales, strict=True)):
        values = _pixels(path, most)
        if scaled:
            values = values.astype(np.float64) * slope + intercept
        target = out[place] if len(paths) > 1 else out.reshape(values.shape)
        if values.shape != target.shape:
            raise CodecError(f"{path.name}: its pixels are {values.shape}, the header says {target.shape}", "undecodable")
        target[...] = values
    return out


def _inflated(path: AnyPath, most: int) -> tuple[Any, bool]:
    """Return what to give to pydicom, and whether there is more.

    pydicom inflates a deflated file as a whole, however much that becomes. So no more than `most` bytes of it are inflated here.

    Raises:
        CodecError: the deflated part ends early.
    """
    pydicom: Any = importlib.import_module("pydicom")
    with path.open("rb") as file:
        if file.read(132)[128:] != b"DICM":
            return path, False  # pydicom reports it
        meta = pydicom.filereader.read_dataset(file, False, True, stop_when=lambda tag, _vr, _length: tag.group != 2)
        if meta.get("TransferSyntaxUID") != pydicom.uid.DeflatedExplicitVRLittleEndian:
            return path, False
        plain, inflate = io.BytesIO(), zlib.decompressobj(-zlib.MAX_WBITS)
        meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        plain.write(bytes(128) + b"DICM")
        pydicom.filewriter.write_file_meta_info(plain, pydicom.dataset.FileMetaDataset(meta), enforce_standard=False)
        while most > 0 and (data := inflate.unconsumed_tail or file.read(BLOCK)):
            most -= plain.write(inflate.decompress(data, min(most, BLOCK)))
    if not inflate.eof and most > 0:
        raise CodecError("its deflated part ends early", "truncated")
    plain.seek(0)
    return plain, not inflate.eof


def _header(path: AnyPath) -> Any:
    pydicom: Any = importlib.import_module("pydicom")  # optional; the listing has checked that it is installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain, _ = _inflated(path, HEADER_BYTES)
            header = pydicom.dcmread(plain, stop_before_pixels=True, specific_tags=TAGS)
            if not all(name in header for name in ("SeriesInstanceUID", "Rows", "Columns", "BitsAllocated")):
                raise CodecError("a DICOM file without an image", "no-image")
            _layout(header), _scale(header)
    except pydicom.errors.InvalidDicomError:
        raise CodecError("it is no DICOM file", "not-dicom") from None
    except (CodecError, OSError):
        raise
    except Exception as error:  # noqa: BLE001  a damaged header may raise anything
        raise CodecError(f"pydicom cannot read its header: {error}"[:200], "header") from None
    if "ModalityLUTSequence" in header or "SharedFunctionalGroupsSequence" in header or header.get("SamplesPerPixel", 1) != 1:
        raise CodecError("colours, look-up tables and enhanced multi-frame DICOM are not read: convert it to NIfTI", "unsupported")
    if int(header.BitsAllocated) not in (8, 16, 32):
        raise CodecError(f"{header.BitsAllocated} bits a pixel", "unsupported")
    return header


def _layout(header: Any) -> tuple[int, int, int, int]:
    return int(header.Rows), int(header.Columns), int(header.BitsAllocated), int(header.get("PixelRepresentation", 0))


def _frames(header: Any) -> int:
    """Return the number of frames of a file; 0 if it is one slice."""
    frames = int(header.get("NumberOfFrames") or 1)
    return frames if frames > 1 else 0


def _scale(header: Any) -> tuple[float, float]:
    slope, intercept = header.get("RescaleSlope"), header.get("RescaleIntercept")
    return 1.0 if slope is None else float(slope), 0.0 if intercept is None else float(intercept)


def _sorted(headers: list[tuple[AnyPath, Any]]) -> Sequence[tuple[AnyPath, Any]]:
    """Sort slices by position along the normal of the first one, or by number."""
    turns = [header.get("ImageOrientationPatient") for _, header in headers]
    places = [header.get("ImagePositionPatient") for _, header in headers]
    if all(turn is not None and len(turn) == 6 for turn in turns) and all(p is not None and len(p) == 3 for p in places):
        if np.ptp(np.array(turns, float), axis=0).max() > 1e-3:
            raise CodecError("its slices lie in different planes", "unequal-slices")
        turn = np.array(turns[0], float)
        keys = (np.array(places, float) @ np.cross(turn[:3], turn[3:])).tolist()
        even = True
    else:
        numbers = [header.get("InstanceNumber") for _, header in headers]
        if any(number is None for number in numbers):
            raise CodecError("its slices have neither positions nor numbers", "no-positions")
        keys = [float(number) for number in numbers]
        even = False
    order = sorted(range(len(keys)), key=keys.__getitem__)
    gaps = np.diff([keys[k] for k in order])
    if gaps.min() < 1e-4:
        raise CodecError("two of its slices lie at the same place: a series in time, or several acquisitions", "same-place")
    if even and gaps.max() > UNEVEN * gaps.min():
        raise CodecError(f"its slices are {gaps.min():g} to {gaps.max():g} mm apart: one may be missing", "uneven-slices")
    return [headers[k] for k in order]


def _pixels(path: AnyPath, most: int) -> Array:
    """Decode the pixels of a file. most: the bytes that it may have when it is inflated."""
    pydicom: Any = importlib.import_module("pydicom")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for example on padding after the pixels
            plain, has_more = _inflated(path, most)
            if has_more:
                raise CodecError(f"{path.name}: inflated, it has more than {most} bytes, which its pixels do not take", "too-large")
            values: Array = pydicom.dcmread(plain).pixel_array
    except (CodecError, OSError):
        raise
    except Exception as error:  # noqa: BLE001  pydicom's decoders may raise anything
        short = "expected" in str(error) or "end of" in str(error).lower() or isinstance(error, EOFError)
        raise CodecError(f"{path.name}: {error}"[:200], "truncated" if short else "undecodable") from None
    return values
