"""Arrays whose files expand without measure: `--max-bytes` holds while they are read, not only for what came of it."""

from __future__ import annotations

import gzip
import json
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import nibabel
import numpy as np
import pydicom
import pytest

import fastdata
from fastdata import ArrayDataset, CodecError, PrepError
from fastdata.arrays.readers import npz_names
from support import PEAK_MEMORY, encode, run

PEAK = f"""{PEAK_MEMORY}
import json, resource, sys
import fastdata
try:
    made = fastdata.prep(sys.argv[1], sys.argv[2], workers=1, **json.loads(sys.argv[3]))
    print(json.dumps([made.kept, made.rejected, made.first_reject]))
except fastdata.PrepError as error:
    print(json.dumps([0, {{}}, str(error)]))
print(max(peak_memory(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10) >> 20)
"""


def measured(source: Path, **options: Any) -> tuple[int, dict[str, int], str, int]:
    """Arrays kept, rejects, the first of them or the error, and the largest memory of the run and its workers in MiB."""
    done = run(sys.executable, "-c", PEAK, source, source.with_name("o.fds"), json.dumps(options))
    assert done.returncode == 0, done.stderr
    (kept, rejected, first), peak = map(json.loads, done.stdout.splitlines())
    return kept, rejected, first, peak


def deflated(rows: int, columns: int, pixels: bytes, times: int = 1, *, private: int = 0) -> bytes:
    """A DICOM file whose pixels are `pixels`, so many times, all of it deflated. private: bytes of another element before."""
    made = pydicom.Dataset()
    made.file_meta = pydicom.dataset.FileMetaDataset()
    made.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID = "1.2.3.4"
    made.SeriesInstanceUID, made.Rows, made.Columns = "1.2.3", rows, columns
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated = made.BitsStored = 8
    made.HighBit, made.PixelRepresentation = 7, 0
    plain = pydicom.filebase.DicomBytesIO()
    plain.is_implicit_VR, plain.is_little_endian = False, True
    pydicom.filewriter.write_dataset(plain, made)
    meta = pydicom.filebase.DicomBytesIO()
    meta.write(bytes(128) + b"DICM")
    pydicom.filewriter.write_file_meta_info(meta, made.file_meta, enforce_standard=False)
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = [packer.compress(plain.getvalue())]
    if private:
        body.append(packer.compress(struct.pack("<HH2sHI", 0x0029, 0x1010, b"OB", 0, private)))
        body += [packer.compress(bytes(1 << 20)) for _ in range(private >> 20)]
    body.append(packer.compress(struct.pack("<HH2sHI", 0x7FE0, 0x0010, b"OB", 0, len(pixels) * times)))
    body += [packer.compress(pixels) for _ in range(times)]
    return b"".join([meta.getvalue(), *body, packer.flush()])


def test_a_deflated_dicom_is_read(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 30), np.uint8)
    (tmp_path / "x.dcm").write_bytes(deflated(40, 30, pixels.tobytes()))
    assert (pydicom.dcmread(tmp_path / "x.dcm").pixel_array == pixels).all()
    dataset = ArrayDataset(fastdata.prep(tmp_path / "x.dcm", tmp_path / "o.fds", workers=1).out)
    np.testing.assert_array_equal(dataset[0][0].numpy()[0], pixels)


def test_a_deflated_dicom_that_was_cut_short(tmp_path: Path) -> None:
    whole = deflated(40, 30, np.random.default_rng(0).bytes(1200))
    for length in (len(whole) - 1, len(whole) - 300):
        (tmp_path / "x.dcm").write_bytes(whole[:length])
        with pytest.raises(PrepError, match="ends early"):
            fastdata.prep(tmp_path / "x.dcm", tmp_path / "o.fds", workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("honest", [True, False])
def test_a_deflated_dicom_takes_no_more_memory_than_allowed(tmp_path: Path, honest: bool) -> None:
    """Honest: its header says how large it is. If not, there is more than it says."""
    (tmp_path / "in").mkdir()
    side = 32_768 if honest else 64
    (tmp_path / "in/x.dcm").write_bytes(deflated(side, side, bytes(1 << 20), 1 << 10))
    (tmp_path / "in/y.npy").write_bytes(b"")
    np.save(tmp_path / "in/y.npy", np.zeros((1, 64, 64), np.uint8))
    kept, rejected, first, peak = measured(tmp_path / "in", max_bytes=1 << 20)
    assert (kept, rejected) == (1, {"too-large": 1}) and peak < 450
    wanted = f"(1, {side}, {side}) uint8 are {side**2} bytes, more than 1048576: see --max-bytes"
    assert (wanted if honest else "inflated, it has more than") in first


@pytest.mark.slow
def test_what_lies_before_the_pixels_of_a_deflated_dicom_is_limited_too(tmp_path: Path) -> None:
    (tmp_path / "x.dcm").write_bytes(deflated(64, 64, bytes(4096), private=1 << 30))
    kept, _, _, peak = measured(tmp_path / "x.dcm")
    assert kept == 0 and peak < 450


def test_a_damaged_directory_of_an_npz_loses_no_array(tmp_path: Path) -> None:
    """Any bit of it, and any entry that is not there. What is listed is all arrays, or the file is refused."""
    np.savez(tmp_path / "good.npz", a=np.arange(3), b=np.arange(4.0), c=np.arange(5, dtype=np.uint8))
    good, path = (tmp_path / "good.npz").read_bytes(), tmp_path / "x.npz"
    begin = good.index(b"PK\1\2")
    size = len(good) - begin - 22

    def listed(data: bytes) -> list[str]:
        path.write_bytes(data)
        return npz_names(path)

    assert listed(good) == ["a", "b", "c"]
    refused = 0
    for bit in range(8 * begin, 8 * len(good)):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert sorted(listed(bytes(damaged))) == ["a", "b", "c"]
        except CodecError:
            refused += 1
    assert refused > 500
    for k in range(3):
        entries = good[begin : begin + k * size // 3] + good[begin + (k + 1) * size // 3 : begin + size]
        end = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 2, 2, len(entries), begin, 0)
        with pytest.raises(CodecError, match="does not fit what the file holds"):
            listed(good[:begin] + entries + end)


def test_an_npz_whose_directory_is_damaged_is_a_reject(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros((8, 8, 8), np.uint8), b=np.ones((8, 8, 8), np.uint8))
    data = (tmp_path / "x.npz").read_bytes()
    at = data.rindex(b"b.npy")
    (tmp_path / "x.npz").write_bytes(data[:at] + b"b.npx" + data[at + 5 :])  # numpy's own reader has one array left
    np.save(tmp_path / "y.npy", np.zeros((8, 8, 8), np.uint8))
    done = fastdata.prep(tmp_path, tmp_path.parent / f"{tmp_path.name}.fds", workers=1)
    assert (done.kept, done.rejected) == (1, {"undecodable": 1})


@contextmanager
def packed_array(path: Path) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("a.npy", "w") as member:
        yield member


@pytest.mark.slow
def test_a_header_of_npy_that_claims_gigabytes_is_not_read(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a.npy", "w") as member,
    ):
        member.write(b"\x93NUMPY\2\0" + struct.pack("<I", 512 << 20))
        for _ in range(512):
            member.write(b" " * (1 << 20))
    kept, _, first, peak = measured(tmp_path / "x.npz")
    assert kept == 0 and "its .npy header claims 536870912 bytes" in first and peak < 450


@pytest.mark.slow
def test_a_member_that_expands_without_measure(tmp_path: Path) -> None:
    header = np.lib.format.magic(1, 0) + struct.pack("<H", 118)
    header += repr({"descr": "|u1", "fortran_order": False, "shape": (1 << 30,)}).encode().ljust(117) + b"\n"
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a.npy", "w") as member,
    ):
        member.write(header)
        for _ in range(1 << 10):
            member.write(bytes(1 << 20))
    kept, _, first, peak = measured(tmp_path / "x.npz", max_bytes=1 << 20)
    assert kept == 0 and "(1073741824,) uint8 are 1073741824 bytes, more than 1048576: see max_bytes" in first and peak < 450


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_extensions_of_nifti_are_limited(tmp_path: Path, kind: Any) -> None:
    nibabel.save(kind(np.zeros((4, 4, 4), np.uint8), np.eye(4)), tmp_path / "y.nii")
    data = bytearray((tmp_path / "y.nii").read_bytes())
    at, form = (108, "<f") if kind is nibabel.Nifti1Image else (168, "<q")
    size = 348 if kind is nibabel.Nifti1Image else 540
    struct.pack_into(form, data, at, 512 << 20)
    data[size] = 1  # there are extensions
    with gzip.open(tmp_path / "x.nii.gz", "wb", compresslevel=1) as file:
        file.write(data[: size + 4] + struct.pack("<ii", (512 << 20) - size - 4, 6))
        for _ in range(512):
            file.write(bytes(1 << 20))
    kept, _, first, peak = measured(tmp_path / "x.nii.gz")
    assert kept == 0 and "its values begin at byte 5.36871e+08" in first.replace("536870912", "5.36871e+08") and peak < 450


@pytest.mark.slow
def test_a_png_is_measured_before_it_is_decoded(tmp_path: Path) -> None:
    import cv2

    large = encode(np.zeros((16_000, 16_000), np.uint8), ".png", cv2.IMWRITE_PNG_COMPRESSION, 1)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x.png").write_bytes(large)
    (tmp_path / "in/y.png").write_bytes(encode(np.zeros((20, 20), np.uint8), ".png"))
    kept, rejected, first, peak = measured(tmp_path / "in", kind="arrays", max_bytes=1 << 20)
    assert (kept, rejected) == (1, {"too-large": 1}) and "(16000, 16000) uint8 are 256000000 bytes" in first and peak < 350
