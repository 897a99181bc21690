"""Targets: files of arrays: .npy, .npz and NIfTI."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from fastdata.arrays import files
from stores import folder
from target import TARGETS, Case, Target
from target_archives import contents

VALUES = np.arange(4 * 5 * 6, dtype=np.int16).reshape(4, 5, 6)
MOST = 1 << 20  # bytes of an array


def read_array(case: Case) -> Any:
    path = case.write()
    names = files.npz_names(path) if path.suffix == ".npz" else [""]
    return [np.array(files.read_array(path, name, MOST)) for name in names[:4]]


def npy() -> dict[str, bytes]:
    def saved(values: Any) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, values)
        return buffer.getvalue()

    return {"a.npy": saved(VALUES), "fortran.npy": saved(np.asfortranarray(VALUES)), "empty.npy": saved(VALUES[:0])}


def npz() -> dict[str, bytes]:
    files = {}
    for name, save in (("plain.npz", np.savez), ("packed.npz", np.savez_compressed)):
        buffer = io.BytesIO()
        save(buffer, a=VALUES, b=VALUES[0].astype(np.float32))
        files[name] = buffer.getvalue()
    return files


def nifti() -> dict[str, bytes]:
    import nibabel

    root, image = folder(), nibabel.Nifti1Image(VALUES, np.eye(4))
    scaled = nibabel.Nifti1Image(VALUES.astype(np.float32) / 7, np.eye(4))
    scaled.header.set_data_dtype(np.int16)
    nibabel.save(image, root / "a.nii")
    nibabel.save(scaled, root / "scaled.nii")
    nibabel.save(nibabel.Nifti2Image(VALUES, np.eye(4)), root / "two.nii")
    return contents(root)


def packed_nifti() -> dict[str, bytes]:
    import gzip

    return {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in nifti().items()}


_ALL: tuple[tuple[str, Any, Any, int], ...] = (
    ("npy", npy, "truncated", 3000),
    ("npz", npz, "always", 2000),
    ("nifti", nifti, "truncated", 500),
    ("nifti_gz", packed_nifti, "always", 500),
)
for _name, _files, _exact, _cases in _ALL:  # a worker rejects what raises any error
    TARGETS[f"array_{_name}"] = Target(read_array, _files, exact=_exact, cases=_cases, allowed=(Exception,))
