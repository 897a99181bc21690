"""Write docs/guarantees.md: each promise in a line, with the tests that hold it, and how often a campaign tried it.

python tools/guarantees.py              from benchmarks/results/campaign.json
python tools/guarantees.py STATE.json   take the counts of a campaign (build/campaign/state.json) into that file first
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/campaign.json"
PAGE = ROOT / "docs/guarantees.md"


class Promise(NamedTuple):
    """text: what holds. tests: FILE::FUNCTION below tests/, of which the function may be left out. tried: names in a campaign."""

    text: str
    tests: tuple[str, ...]
    tried: tuple[str, ...] = ()


KEPT = ("cases", "seconds", "slowest", "finds", "next")  # of a target, from which the next campaign goes on
FAULTS = "faults/test_faults.py"
SIGNALS = f"{FAULTS}::test_a_signal_at_any_moment_does_no_harm"
BYTES = f"{FAULTS}::test_damaged_bytes_do_no_harm"
LOADS = f"{FAULTS}::test_a_load_leaves_nothing"

PROMISES: dict[str, tuple[Promise, ...]] = {
    "Nothing is silently wrong": (
        Promise(
            "The same inputs and options make the same bytes, with any number of workers, in any place",
            ("test_prepare.py::test_neither_workers_nor_place_change_a_byte",),
        ),
        Promise(
            "Versions of fastdata write the same bytes",
            ("test_store.py::test_today_s_code_writes_the_golden_bytes", "test_golden_kinds.py"),
        ),
        Promise(
            "Batches are a function of seed, epoch and position, with any number of workers",
            (
                "test_properties_loader.py::test_any_run_with_workers_delivers_the_documented_batches",
                "test_properties_loader.py::test_any_run_with_any_engine_delivers_the_documented_batches",
            ),
        ),
        Promise(
            "Global batches are the same on any number of ranks",
            ("test_elastic.py::test_global_batches_are_the_same_whatever_the_ranks",),
        ),
        Promise(
            "`fastdata verify` finds any change of a table or shard",
            ("test_store.py::test_every_harmed_shard_is_named", BYTES),
            ("verify_*",),
        ),
        Promise("An image file that ends early is rejected, or has all of its pixels", (BYTES,), ("image_*",)),
        Promise(
            "A damaged PNG is rejected, or has all of its pixels: each chunk's checksum is compared",
            (BYTES,),
            ("image_png_damaged", "image_bits16"),
        ),
        Promise(
            "A checkpoint that is damaged is not loaded: an older one is, with a warning",
            (BYTES, "test_train_checkpoints.py::test_a_part_that_one_bit_makes_a_folder_is_damage"),
            ("checkpoint",),
        ),
        Promise(
            "What follows a WebP's picture does not hide its damage",
            ("test_source_damage.py::test_damage_in_a_webp_is_not_hidden_by_what_follows",),
        ),
        Promise(
            "A quote in a wrong place of a CSV never joins rows",
            ("test_hostile_tables.py::test_a_quote_in_a_wrong_place_is_an_error",),
        ),
        Promise(
            "An `.npz` whose directory is damaged loses no array",
            ("test_hostile_arrays.py::test_a_damaged_directory_of_an_npz_loses_no_array",),
        ),
        Promise(
            "An open dataset never gives a sample of a store that replaced its own",
            ("test_damaged_stores.py::test_a_store_that_is_replaced_gives_no_sample_of_the_other",),
        ),
        Promise(
            'With `check="first"`, no changed bit of an image is delivered',
            ("test_damaged_stores.py::test_a_changed_pixel_is_an_error_when_its_record_is_first_read",),
        ),
        Promise(
            "Each index of a sampler is the sample that it names, or an error",
            (
                "test_sampling.py::test_negative_indices_of_samplers_count_from_the_end_as_in_torch",
                "test_sampling.py::test_indices_beyond_the_dataset_are_named",
            ),
        ),
        Promise(
            "Nothing depends on the time of day, which may jump by years while a program runs",
            (
                "test_clock.py::test_batches_trainings_and_stores_do_not_depend_on_the_time_of_day",
                "test_cache.py::test_what_was_read_before_the_clock_was_set_back_goes_first",
                "scale/test_remote.py::test_a_clock_that_jumps_disturbs_neither_readers_nor_the_fetcher",
            ),
        ),
        Promise(
            "The bytes of a store depend on neither the locale nor `ulimit -v`",
            (
                "test_process_faults.py::test_a_store_has_the_same_bytes_under_every_locale",
                "test_process_faults.py::test_a_shard_has_the_same_bytes_where_address_space_is_limited",
            ),
        ),
        Promise(
            "No input is rejected because open files ran out",
            ("test_process_faults.py::test_inputs_are_not_rejected_because_too_many_files_are_open",),
        ),
    ),
    "Hostile bytes do no harm: an error, and no crash, hang, traceback or memory without bounds": (
        Promise(
            "Stores of all kinds, whose manifest fits what was damaged",
            (
                BYTES,
                "test_damaged_stores.py::test_any_bit_flipped_and_any_file_cut_gives_the_samples_or_an_error",
                "test_store.py::test_any_value_anywhere_in_a_manifest",
            ),
            ("store_*", "jpeg_cells", "planes"),
        ),
        Promise("The commands `info` and `export` on such stores", (BYTES,), ("command_*",)),
        Promise(
            "Image files",
            (BYTES, "test_source_damage.py::test_any_damage_is_refused_or_leaves_pixels_of_the_right_size"),
            ("image_*",),
        ),
        Promise(
            "Decoding an image takes no more memory than its header says; where the machine has less, the run ends",
            (
                "test_source_damage.py::test_decoding_takes_no_more_memory_than_the_header_says",
                "test_room.py::test_an_image_that_exceeds_this_machine_ends_the_run_and_is_no_reject",
            ),
        ),
        Promise(
            "Archives: tar, Parquet, Arrow, HDF5, idx, CIFAR, LMDB",
            (BYTES, "test_source_arrow.py::test_offsets_that_lead_out_of_a_file_are_errors"),
            ("archive_*",),
        ),
        Promise(
            "There are no more shards than inputs, whatever sizes these claim",
            ("test_hostile_archives.py::test_there_are_never_more_shards_than_inputs",),
        ),
        Promise(
            "Arrays: npy, npz, NIfTI, DICOM, TIFF",
            (BYTES, "test_hostile_arrays.py::test_a_deflated_dicom_takes_no_more_memory_than_allowed"),
            ("array_*",),
        ),
        Promise(
            "Text, tokens, tokenizers, tables, labels",
            (BYTES, "test_hostile_text.py::test_a_line_that_expands_without_measure_is_a_reject_and_never_in_memory"),
            ("text", "packed_text", "tokens", "megatron", "tokenizers", "table_plan", "label_tables"),
        ),
        Promise("Annotations: COCO, VOC, YOLO", (BYTES,), ("coco", "voc", "yolo")),
        Promise("The manifest and tables that a bucket serves; nothing is written outside of the cache", (BYTES,), ("mirrored",)),
        Promise(
            "Damaged, foreign or missing files in the cache of a remote store; nothing is written outside of it",
            (
                BYTES,
                "scale/test_remote.py::test_a_damaged_shard_in_the_cache_is_fetched_again",
                "test_cache.py::test_a_link_in_a_cache_leads_nowhere",
            ),
            ("cached",),
        ),
        Promise(
            "Damaged answers of a bucket, and answers from two stores: the samples of one store, or an error",
            (BYTES, "scale/test_remote.py::test_answers_that_are_not_what_was_asked_for"),
            ("answered",),
        ),
        Promise("States of a Loader, and a fetcher that ends in the middle of a message", (BYTES,), ("loader_state", "wire")),
        Promise("No code of a pickle runs", ("test_archives_cifar.py::test_code_in_a_pickle_is_refused_by_name_and_not_run",)),
        Promise(
            "No name leads out of its folder",
            ("test_store.py::test_hostile_names_stay_inside", "test_store.py::test_a_variant_cannot_lead_elsewhere"),
        ),
    ),
    "Nothing is lost when processes die": (
        Promise(
            "Preparing, killed at any moment, ends with the same bytes",
            ("test_kill.py::test_kill_9_at_random_moments", SIGNALS),
            ("preparing",),
        ),
        Promise(
            "A store that grows has its old samples, or all",
            ("test_growing.py::test_kill_9_at_random_moments_of_an_append", SIGNALS),
            ("appending",),
        ),
        Promise(
            "Replacing a store leaves the old one or the new one at any moment, and the same command ends with the new one",
            (
                "test_overwrite.py::test_at_any_step_there_is_one_whole_store_and_finishing_again_ends_alike",
                "scale/test_overwrite_remote.py::test_at_any_step_there_is_one_whole_store_and_the_same_command_ends_alike",
                SIGNALS,
            ),
            ("overwriting",),
        ),
        Promise(
            "A lost worker of a Loader is an error, and the next pass is whole",
            ("test_loader.py::test_a_killed_worker_is_an_error_not_a_hang_and_the_next_pass_works", SIGNALS),
            ("loading", "loading_from_memory"),
        ),
        Promise(
            "A process that makes batches of tokens is killed, and another one makes the rest from its last state",
            (SIGNALS,),
            ("loading_tokens",),
        ),
        Promise(
            "A store in object storage is read whole when the process that fetches it is killed, and the next pass is whole when a "
            "reader is; no process, socket, or part of a file is left",
            (
                "scale/test_remote.py::test_a_fetcher_that_is_killed_is_replaced",
                "scale/test_remote.py::test_a_fetcher_that_is_ended_leaves_no_part_of_a_file",
                SIGNALS,
            ),
            ("remote_loading",),
        ),
        Promise(
            "A process that fetches and is stopped is named while it is waited for",
            ("scale/test_remote.py::test_a_fetcher_that_is_stopped_is_named_and_its_answer_comes_when_it_goes_on",),
        ),
        Promise(
            "Preparing to a URL and publishing, killed at any moment, end with the same objects, whose manifest comes last",
            ("scale/test_prepare_remote.py::test_kill_9_at_random_moments", SIGNALS),
            ("remote_preparing", "remote_publishing"),
        ),
        Promise(
            "A worker that is stopped is named while the Loader waits for it, and one that is killed does not disturb `close`",
            (
                "test_loader.py::test_a_worker_that_is_stopped_is_named_and_its_batches_come_when_it_goes_on",
                "test_loader.py::test_close_does_not_raise_if_a_worker_is_killed_meanwhile",
            ),
        ),
        Promise(
            "Memory that ranks share goes with its last user; others read on when one is killed",
            ("test_node_memory.py::test_kills_at_random_moments", SIGNALS),
            ("memory_of_ranks",),
        ),
        Promise(
            "What was said to be saved is there",
            ("test_train_checkpoints.py::test_killed_30_times_while_it_saves", SIGNALS),
            ("saving",),
        ),
        Promise(
            "A run that gets a signal while it saves goes on from its newest whole checkpoint, and leaves no other files",
            ("test_train_checkpoints.py::test_a_run_that_is_signalled_while_it_saves_goes_on_from_its_newest_checkpoint",),
        ),
        Promise(
            "A disk that is full for a checkpoint ends the run with an error that names the file, and keeps the one before",
            ("test_train_checkpoints.py::test_a_full_disk_ends_a_run_with_what_to_do_and_the_last_checkpoint",),
        ),
        Promise(
            "A training, killed at any moment, ends with the same weights",
            ("test_train_resume.py::test_killed_after_any_save_the_last_checkpoint_is_the_same", SIGNALS),
            ("training",),
        ),
        Promise(
            "A killed process leaves no process and no shared memory, under any start method",
            (
                "test_process_faults.py::test_nothing_is_left_when_the_process_of_a_loader_is_killed",
                "test_kill.py::test_a_worker_whose_decoder_hangs_ends_with_its_parent",
                SIGNALS,
            ),
            ("preparing", "loading*"),
        ),
        Promise(
            "A full `/dev/shm` is an error, never a wait",
            ("test_process_faults.py::test_full_shared_memory_is_an_error_and_leaves_no_files",),
        ),
        Promise(
            "A reader or a fetcher of a remote store that may open no more files is an error, never a wait",
            (
                "scale/test_remote.py::test_a_reader_that_may_open_no_more_files_says_so",
                "scale/test_remote.py::test_a_fetcher_that_may_open_no_more_files_says_so_and_goes_on_later",
            ),
        ),
    ),
    "Nothing leaks": (
        Promise("Memory, descriptors, threads and processes stay as they are over batches", (LOADS,), ("batches",)),
        Promise("The same over epochs from memory", (LOADS,), ("epochs",)),
        Promise("The same over Loaders, also such as are left in the middle", (LOADS,), ("loaders",)),
        Promise("The same over epochs of tokens, tables and arrays", (LOADS,), ("token_epochs", "table_epochs", "array_epochs")),
        Promise("The same over processes that attach to memory of another, and let go of it", (LOADS,), ("attached",)),
        Promise(
            "The same over epochs and Loaders of stores in object storage, also of what fetches them; a cache keeps its size",
            (LOADS,),
            ("remote_epochs", "remote_loaders"),
        ),
        Promise("Processes that fetch, which come and go, leave no zombie and no part of a file", (LOADS,), ("remote_fetchers",)),
        Promise("Two Loaders in turn, and several threads, get what one gets alone", (LOADS,), ("interleaved", "from_threads")),
        Promise(
            "After a Ctrl-C at any moment of a pass, the same Loader makes its batches again",
            (LOADS,),
            ("interrupts", "remote_interrupts"),
        ),
    ),
}


def taken(state: dict[str, Any]) -> dict[str, Any]:
    """Return what the page needs of a campaign's state."""
    targets = {name: {key: found[key] for key in KEPT} for name, found in state["targets"].items()}
    return {"targets": targets, "rounds": state.get("rounds", {})}


def counted(names: tuple[str, ...], campaign: dict[str, Any]) -> str:
    """Say how often the campaign tried something, and how much of it went wrong."""
    targets = [found for name, found in campaign["targets"].items() if any(fnmatchcase(name, pattern) for pattern in names)]
    rounds = [found for name, found in campaign["rounds"].items() if any(fnmatchcase(name, pattern) for pattern in names)]
    cases = sum(found["cases"] for found in targets)
    signals = sum(sum(found["signals"].values()) for found in rounds)
    loads = sum(found["count"] for found in rounds)
    wrong = sum(sum(one["count"] for one in found["finds"].values()) for found in targets) + sum(
        len(found["finds"]) for found in rounds
    )
    parts = [f"{count:,} {what}" for count, what in ((cases, "cases"), (signals, "signals"), (loads, "times")) if count]
    return ", ".join(parts) + (f"; {wrong:,} wrong" if wrong else "")


def page(campaign: dict[str, Any]) -> str:
    """Return the text of the page."""
    return "\n".join(_lines(campaign)) + "\n"


def _lines(campaign: dict[str, Any]) -> Iterator[str]:
    cases = sum(found["cases"] for found in campaign["targets"].values())
    signals = sum(sum(found["signals"].values()) for found in campaign["rounds"].values())
    yield "# Guarantees"
    yield ""
    yield "Each promise is held by tests that run before every change. The last column counts what campaigns (`make campaign`)"
    yield f"tried on top: {cases:,} damaged inputs and {signals:,} signals so far."
    yield "What is meant against strangers is in [SECURITY.md](../SECURITY.md). This page is written by `tools/guarantees.py`."
    for title, promises in PROMISES.items():
        yield from ("", f"## {title}", "", "| promise | held by | campaigns |", "|---|---|---|")
        for promise in promises:
            tests = ", ".join(f"[`{test.rpartition('::')[2]}`](../tests/{test.partition('::')[0]})" for test in promise.tests)
            yield f"| {promise.text} | {tests} | {counted(promise.tried, campaign)} |"


def main() -> None:
    if len(sys.argv) > 1:
        RESULTS.write_text(json.dumps(taken(json.loads(Path(sys.argv[1]).read_bytes())), indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(json.loads(RESULTS.read_bytes())))
    print(PAGE)


if __name__ == "__main__":
    main()
