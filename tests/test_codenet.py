"""Groups from Project CodeNet's files: every submission is accounted for, and folders and archives give the same."""

import io
import json
import logging
import os
import shutil
import tarfile
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support import write_lines

from cobalt.datasets import codenet, codenet_files
from cobalt.datasets.codenet import CodeNetSettings, codenet_groups
from cobalt.datasets.offline import writing
from cobalt.datasets.offline.contrast import NO_CONTRAST
from cobalt.datasets.offline.groups import Status, read_groups
from cobalt.datasets.offline.settings import GroupSettings, RewardLevels
from cobalt.datasets.offline.similarity import letters, similar_pairs
from cobalt.datasets.offline.writing import split_problems
from cobalt.episode import program_of
from cobalt.problems.problem import load_problems
from cobalt.stage.errors import UserError

HEADER = (
    "submission_id,problem_id,user_id,date,language,original_language,filename_ext,status,cpu_time,memory,code_size,"
    "accuracy"
)
STORY = (
    "On day {0} the {0} foxes of village {0} count their {0} apples and ask for the sum of numbers {0} and {0}. " * 3
)
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def row(submission, problem="p00000", status="Accepted", **fields):
    values = submission, problem, "u1", "1500000000", "Python", "PyPy3 (7.3.0)", "py", status, "20", "9000", "20", ""
    return ",".join((dict(zip(HEADER.split(","), values, strict=True)) | fields).values())


def page(number, extra=""):
    samples = "<h3>Sample Input 1</h3><pre>1 2\n</pre><h3>Sample Output 1</h3><pre>3\n</pre>"
    return f"<h1>Problem</h1><p>{STORY.format(WORDS[number % 10] * (1 + number // 10))}</p>{extra}{samples}"


class DataSet:
    """A small data set in the form of CodeNet."""

    def __init__(self, root):
        self.root = root

    def add(self, number, rows, sources=None, html=None):
        """A problem; each submission's source prints its id unless `sources` has it."""
        name = f"p{number:05}"
        for folder in ("metadata", "problem_descriptions", f"data/{name}/Python", f"data/{name}/C++"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / "metadata" / f"{name}.csv").write_text("\n".join([HEADER, *rows]) + "\n", newline="")
        if html != "":
            (self.root / "problem_descriptions" / f"{name}.html").write_text(html or page(number), encoding="utf-8")
        for line in rows:
            submission, language = line.split(",")[0], line.split(",")[4]
            source = (sources or {}).get(submission, f"print('{submission}')\n".encode())
            if source is not None:
                folder = self.root / "data" / name / language
                folder.mkdir(exist_ok=True)
                (folder / f"{submission}.py").write_bytes(source)
        return self

    def fill(self, problems, accepted=3, wrong=5):
        """Problems with accepted and wrong submissions."""
        for number in range(problems):
            good = [row(f"s{number:04}{place:05}", f"p{number:05}") for place in range(accepted)]
            bad = [row(f"s{number:04}{place + 50:05}", f"p{number:05}", "Wrong Answer") for place in range(wrong)]
            self.add(number, good + bad)
        return self


@pytest.fixture
def data(tmp_path):
    return DataSet(tmp_path / "Project_CodeNet")


def run(data, tmp_path, name="out", **fields):
    paths = fields.pop("input_paths", (data.root,))
    chosen = {"validation_share": 0.0, "near_duplicates": 2.0, "group_size": 2} | fields
    settings = CodeNetSettings(input_paths=paths, output_dir=tmp_path / name, **chosen)
    return codenet_groups(settings).summary, settings.output_dir


def responses(folder, split="train"):
    return {one.origin: one for group in read_groups(folder / f"{split}.jsonl") for one in group.responses}


def test_every_status_has_its_reward_and_unjudged_submissions_are_counted(data, tmp_path, caplog):
    judged = {f"s{place:09}": status for place, status in enumerate(codenet.STATUSES)}
    rows = [row(submission, status=status) for submission, status in judged.items()]
    # One accepted program is needed for each that is not.
    rows += [row(f"s1{place:08}") for place in range(7)]
    rows += [row(f"s2{place:08}", status=status) for place, status in enumerate(sorted(codenet.NOT_JUDGED))]
    rows += [row("s300000000", status="Dreaming"), row("s300000001", status="Dreaming"), row("s300000002", status="")]
    broken = {submission: b"print(" for submission, status in judged.items() if status == "Compile Error"}
    data.add(0, rows, broken)
    with caplog.at_level(logging.WARNING):
        summary, folder = run(data, tmp_path)
    found, levels = responses(folder), RewardLevels()
    for submission in judged.keys() & found.keys():
        assert found[submission].status is codenet.STATUSES[judged[submission]]
    assert {one.status for one in found.values()} == {*codenet.STATUSES.values()}
    assert all(one.reward == levels.of(one.status) for one in found.values())
    programs = summary["programs"]
    assert programs[codenet.UNJUDGED] == len(codenet.NOT_JUDGED)
    assert programs[codenet.EMPTY_FIELD] == 1
    assert programs[f"{codenet.UNKNOWN_STATUS} 'Dreaming'"] == 2
    assert [record.levelname for record in caplog.records if "Dreaming" in record.getMessage()] == ["WARNING"]


NEEDED = ("submission_id", "problem_id", "status", "original_language", "code_size", "cpu_time", "memory")
BAD_ROWS = [
    *(({field: "-1"}, codenet.NEGATIVE_FIELD) for field in ("cpu_time", "memory", "code_size")),
    *(({"cpu_time": number}, codenet.NEGATIVE_FIELD) for number in ("many", "9" * 5000)),
    *(({field: ""}, codenet.EMPTY_FIELD) for field in NEEDED),
    *(({"original_language": name}, codenet.PYTHON_2) for name in ("Python2", "Python (2.7.6)", "PyPy2 (5.6.0)")),
]
LANGUAGES = ["PyPy3 (2.4.0)", "Python (3.4.3)", "Python3", "Python"]


def test_rows_that_say_too_little_are_dropped_and_counted(data, tmp_path):
    good = [row(f"s00000000{place}", original_language=name) for place, name in enumerate(LANGUAGES)]
    good += [row(f"s00000001{place}", status="Wrong Answer") for place in range(4)]
    bad = [row(f"s0000001{place:02}", **fields) for place, (fields, _) in enumerate(BAD_ROWS)]
    summary, folder = run(data.add(0, [*good, *bad]), tmp_path)
    for reason, count in Counter(reason for _, reason in BAD_ROWS).items():
        assert summary["programs"][reason] == count
    assert set(responses(folder)) == {line.partition(",")[0] for line in good}


def test_a_compile_error_must_be_one_here_and_programs_of_no_named_version_must_compile(data, tmp_path):
    empty, unnamed = {"status": "Compile Error", "cpu_time": "", "memory": ""}, {"original_language": "Python"}
    rows = [row("s000000000", **unnamed), row("s000000001", **unnamed), row("s000000002", **empty)]
    rows += [row("s000000003", **empty), row("s000000004")]
    sources = {"s000000000": b"print 1", "s000000002": b"print 'two'", "s000000003": b"print(f'{3}')"}
    summary, folder = run(data.add(0, rows, sources), tmp_path)
    assert responses(folder)["s000000002"].status is Status.COMPILE_ERROR
    assert summary["programs"][codenet.COMPILES] == summary["programs"][codenet.NOT_PYTHON_3] == 1


def test_sources_that_are_missing_or_not_text_are_counted(data, tmp_path):
    rows = [row(f"s00000000{place}", status="Accepted" if place else "Wrong Answer") for place in range(6)]
    large = b"#" * (codenet_files.LARGEST_SOURCE + 1)
    contents = None, b"# \xff", b" \n", b"\xef\xbb\xbfprint(4)\r\n", large
    sources = {f"s00000000{place}": content for place, content in enumerate(contents, 1)}
    summary, folder = run(data.add(0, rows, sources), tmp_path)
    assert summary["programs"][codenet.NO_SOURCE] == 1
    assert summary["programs"][codenet.BAD_SOURCE] == 3
    assert program_of(responses(folder)["s000000004"].text) == "print(4)"


def test_every_row_and_every_problem_ends_in_exactly_one_count(data, tmp_path):
    everything = [row(f"s00000010{place}", **fields) for place, (fields, _) in enumerate(BAD_ROWS)]
    everything += [row("s000000200", status="Odd"), row("s000000201", status="Internal Error"), row("s000000202")]
    data.fill(3)
    data.add(3, [*everything, row("s000000300"), row("s000000301", status="Wrong Answer")])
    data.add(4, [row("s000000400"), row("s000000401", language="C++", original_language="C++14")], html="")
    data.add(5, [row("s000000500")], html="<p>No sample.</p>")
    data.add(7, [row("s000000700")])
    data.add(8, [])
    summary, _ = run(data, tmp_path)
    for kind in ("programs", "problems"):
        counts = dict(summary[kind])
        assert counts.pop(writing.READ) == sum(counts.values())
    problems = summary["problems"]
    assert problems[codenet.NO_PAGE] == problems[codenet.NO_SAMPLE] == 1
    assert problems[writing.NO_GROUP] == 2
    assert summary["programs"][codenet.NO_PAGE] == 1
    assert summary["programs"][NO_CONTRAST] == 1


def tar(data, path, mode="w:gz", names=("metadata", "problem_descriptions", "data")):
    with tarfile.open(path, mode) as archive:
        for name in names:
            archive.add(data.root / name, f"Project_CodeNet/{name}")
    return path


def content(folder):
    manifest = json.loads((folder / "train.run.json").read_text())
    return manifest["summary"], *((folder / f"{name}.jsonl").read_bytes() for name in ("train", "problems"))


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_archives_and_parts_give_the_same_as_their_folder(data, tmp_path, mode):
    names = ("data", "problem_descriptions", "metadata")
    data.fill(4).add(
        4, [row("s000400000", "p00004"), row("s000400001", "p00004", "Wrong Answer")], {"s000400000": None}
    )
    _, folder = run(data, tmp_path)
    archives = [tar(data, tmp_path / "codenet.tar", mode, names), tmp_path / "backwards.tar"]
    with tarfile.open(archives[1], "w") as output:
        for path in sorted(data.root.rglob("*.*"), reverse=True):
            output.add(path, path.relative_to(data.root.parent))
    for archive in archives:
        _, unpacked = run(data, tmp_path, archive.stem, input_paths=(archive,))
        assert content(folder) == content(unpacked), archive
    pages, apart = tar(data, tmp_path / "pages.tar.gz", names=names[1:2]), tmp_path / "apart"
    apart.mkdir()
    (data.root / "metadata").rename(apart / "metadata")
    shutil.rmtree(data.root / "problem_descriptions")
    (tmp_path / "link").symlink_to(data.root)
    _, together = run(data, tmp_path, "together", input_paths=(tmp_path / "link", apart, pages))
    assert content(folder) == content(together)


def header_of(size, name="data/p00000/Python/s1.py", kind=tarfile.REGTYPE):
    """The header of a member that claims a size, in the binary form of GNU tar."""
    member = tarfile.TarInfo(name)
    member.type = kind
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\x80" + size.to_bytes(11, "big")
    header[482] = kind == tarfile.GNUTYPE_SPARSE  # its map goes on after the header
    header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * ord(" "))
    return bytes(header)


def archive_with(path, members, mode="w:gz"):
    """An archive of members by name; a number stands for so many zeros."""
    with tarfile.open(
        path, mode, format=tarfile.GNU_FORMAT, **({"compresslevel": 1} if "gz" in mode else {})
    ) as output:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = content if isinstance(content, int) else len(content)
            output.addfile(member, Zeros(content) if isinstance(content, int) else io.BytesIO(content))
    return path


class Zeros(io.RawIOBase):
    def __init__(self, size):
        self.size = size

    def read(self, size=-1):
        size = self.size if size < 0 else min(size, self.size)
        self.size -= size
        return bytes(size)


SOURCE = {"data/p00000/Python/s000000001.py": b"print(1)\n"}
METADATA = {"metadata/p00000.csv": f"{HEADER}\n{row('s000000001')}\n".encode()}


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"metadata/p00000.csv": codenet_files.LARGEST_PART + 1, **SOURCE}, "metadata/p00000.csv"),
        ({**METADATA, "problem_descriptions/p00000.html": codenet_files.LARGEST_PART + 1}, "p00000.html"),
        ({**METADATA, "data/p00000/Python/" + "s" * (64 << 20): b""}, "header"),
        (
            METADATA
            | {"problem_descriptions/p00000.html": page(0).encode()}
            | {f"data/p00000/Python/s{n:09}.py": codenet_files.LARGEST_SOURCE for n in range(257)},
            "sources of p00000",
        ),
    ],
    ids=["metadata", "page", "name", "sources"],
)
def test_parts_of_an_archive_that_are_too_large_are_refused_before_they_are_in_memory(tmp_path, members, named):
    archive = archive_with(tmp_path / "bomb.tar.gz", members)
    tracemalloc.start()
    with pytest.raises(UserError, match=rf"bomb\.tar\.gz.*{named}") as refused:
        run(DataSet(tmp_path), tmp_path, input_paths=(archive,))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < codenet_files.LARGEST_PART + (64 << 20) if named.startswith("sources") else most < 16 << 20
    assert len(str(refused.value)) < 1000
    assert not list((tmp_path / "out").glob("*.jsonl*"))


@pytest.mark.parametrize("size", [1 << 40, (1 << 88) - 1])
@pytest.mark.parametrize("name", ["data/p00000/Python/s000000001.py", "metadata/p00000.csv", "notes.txt"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE, b"Z"])
def test_a_member_of_an_absurd_size_ends_in_a_sentence(tmp_path, size, name, kind):
    archive = archive_with(tmp_path / "size.tar", METADATA, "w")
    archive.write_bytes(archive.read_bytes()[:1024] + header_of(size, name, kind) + bytes(2048))
    with pytest.raises(UserError, match=r"size\.tar"):
        run(DataSet(tmp_path), tmp_path, input_paths=(archive,))


@pytest.mark.parametrize("blocks", [0, 3])
def test_a_sparse_file_is_refused_before_its_map_is_read(tmp_path, blocks):
    archive = archive_with(tmp_path / "sparse.tar", METADATA, "w")
    endless = (b"1".zfill(12) * 42 + b"\1").ljust(512, b"\0")
    archive.write_bytes(archive.read_bytes()[:1024] + header_of(0, kind=tarfile.GNUTYPE_SPARSE) + endless * blocks)
    with pytest.raises(UserError, match=r"sparse\.tar.*sparse file"):
        run(DataSet(tmp_path), tmp_path, input_paths=(archive,))


@pytest.mark.parametrize(
    "make",
    [
        lambda path, target: path.symlink_to(target),
        lambda path, target: path.symlink_to(target.with_name("none")),
        lambda path, _: path.symlink_to("/dev/zero"),
        lambda path, _: os.mkfifo(path),
        lambda path, _: path.mkdir(),
    ],
    ids=["a link", "a link to nothing", "a link to a device", "a pipe", "a folder"],
)
def test_sources_that_are_not_regular_files_are_not_read_and_other_files_passed_over(data, tmp_path, make):
    folder, secret = data.fill(2).root / "data" / "p00000" / "Python", tmp_path / "secret.py"
    secret.write_text("print('secret')\n")
    source = folder / "s000000000.py"
    source.unlink()
    make(source, secret)
    for name in ("s000000000.py.bak", "._s000000000.py", "notes"):
        (folder / name).write_text("print('secret')\n")
    (folder / "cache").mkdir()
    summary, output = run(data, tmp_path)
    assert summary["programs"][codenet.NO_SOURCE] == 1
    assert "secret" not in "".join(path.read_text() for path in output.iterdir())


@pytest.mark.parametrize(
    ("mode", "damage"),
    [
        ("w:gz", lambda whole, _: whole[:-200]),
        ("w:gz", lambda *_: b"not an archive"),
        ("w:gz", lambda whole, _: whole[:600] + b"\0" * 99 + whole[699:]),
        *(("w", lambda whole, end, more=more: whole[: end + more]) for more in (0, 99, 400)),
        ("w", lambda whole, end: whole[:end] + b"\1" * 512 + whole[end + 512 :]),
    ],
    ids=["cut off", "no archive", "zeros", "cut off after a file", "99 later", "400 later", "damaged after a file"],
)
def test_a_damaged_archive_is_a_mistake_of_the_user_and_leaves_no_result(data, tmp_path, mode, damage):
    archive = tar(data.fill(3), tmp_path / "codenet.tar", mode, ("metadata", "data", "problem_descriptions"))
    with tarfile.open(archive) as whole:
        end = whole.getmembers()[-1].offset
    archive.write_bytes(damage(archive.read_bytes(), end))
    with pytest.raises(UserError, match=r"codenet\.tar"):
        run(data, tmp_path, input_paths=(archive,))
    assert not list((tmp_path / "out").glob("*.jsonl"))


def test_links_of_an_archive_are_not_followed(data, tmp_path):
    archive = tmp_path / "codenet.tar"
    tar(data.fill(1), archive, "w")
    secret = tmp_path / "secret.py"
    secret.write_text("secret = 1\n")
    with tarfile.open(archive, "a") as output:
        for place, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE)):
            link = tarfile.TarInfo(f"data/p00000/Python/s90000000{place}.py")
            link.type, link.linkname = kind, str(secret)
            output.addfile(link)
    ((_, sources),) = codenet_files.read_sources([archive], ["p00000"])
    assert not any(name.startswith("s9") for name in sources)


def test_sources_of_a_problem_in_two_places_are_refused(data, tmp_path):
    archive = tar(data.fill(2), tmp_path / "codenet.tar.gz")
    with pytest.raises(UserError, match="p0000"):
        run(data, tmp_path, input_paths=(data.root, archive))
    scattered = tmp_path / "scattered.tar"
    with tarfile.open(scattered, "w") as output:
        for place, name in enumerate(["p00000", "p00001", "p00000"]):
            member = tarfile.TarInfo(f"data/{name}/Python/s00000000{place}.py")
            output.addfile(member, io.BytesIO())
    with pytest.raises(UserError, match="p00000"):
        run(
            data,
            tmp_path,
            input_paths=(scattered, tar(data, tmp_path / "m.tar", "w", ("metadata", "problem_descriptions"))),
        )


@pytest.mark.parametrize("missing", ["metadata", "data"])
def test_a_folder_that_is_not_codenet_is_refused(data, tmp_path, missing):
    shutil.rmtree(data.fill(1).root / missing)
    with pytest.raises(UserError, match=missing):
        run(data, tmp_path)


def test_a_table_may_begin_with_a_byte_order_mark_and_lacks_only_columns_that_nothing_needs(data, tmp_path):
    _, folder = run(data.fill(1), tmp_path)
    path = data.root / "metadata" / "p00000.csv"
    path.write_text("\ufeff" + path.read_text().replace("filename_ext,", "").replace(",py,", ","))
    _, without = run(data, tmp_path, "without")
    assert (without / "train.jsonl").read_bytes() == (folder / "train.jsonl").read_bytes()
    path.write_text("submission_id,language\ns1,Python\n")
    with pytest.raises(UserError, match="cpu_time"):
        run(data, tmp_path, "refused")
    with path.open("r+b") as handle:
        handle.truncate(codenet_files.LARGEST_PART + 1)
    with pytest.raises(UserError, match=r"metadata/p00000\.csv"):
        run(data, tmp_path, "refused")


def test_problems_are_not_in_two_splits_and_neither_are_similar_ones(data, tmp_path):
    data.fill(30)
    for number in range(10, 20):  # the same statement as ten problems before, with another title
        html = page(number - 10).replace("<h1>Problem</h1>", "<h1>Another contest</h1>")
        (data.root / "problem_descriptions" / f"p{number:05}.html").write_text(html)
    _, folder = run(data, tmp_path, validation_share=0.5)
    train, validation = (
        {int(group.problem_id[1:]) for group in read_groups(folder / f"{split}.jsonl")}
        for split in ("train", "validation")
    )
    assert not train & validation
    assert train | validation == set(range(30))
    assert all((number in train) == (number + 10 in train) for number in range(10))
    problems = {problem.id: problem for problem in load_problems(folder / "problems.jsonl")}
    assert len(problems) == 30
    assert problems["p00003"].tests.to_record() == {"inputs": ["1 2\n"], "outputs": ["3\n"]}


def test_problems_of_an_evaluation_are_left_out(data, tmp_path):
    data.fill(6)
    evaluated = write_lines(
        tmp_path / "evaluated.jsonl",
        [{"question": STORY.format("two").upper()}, {"text": "Something else entirely. " + STORY.format("five")}],
    )
    summary, folder = run(data, tmp_path, evaluation_files=(evaluated,))
    assert {group.problem_id for group in read_groups(folder / "train.jsonl")} == {
        f"p0000{number}" for number in (0, 1, 3, 4)
    }
    assert summary["problems"][writing.EVALUATED] == 2
    assert summary["programs"][writing.EVALUATED] == 16
    for name, rows in (("bad.jsonl, line 1", [{"id": 1}]), ("empty.jsonl", [])):
        other = write_lines(tmp_path / name.partition(",")[0], rows)
        with pytest.raises(UserError, match=name):
            run(data, tmp_path, "refused", evaluation_files=(evaluated, other))


@pytest.mark.parametrize("statement", ["Print one.", STORY.format("two")])
def test_equal_statements_are_never_in_two_splits_however_short_and_however_many(tmp_path, statement):
    evaluated = write_lines(tmp_path / "e.jsonl", [{"question": f"{statement}!" * (1 + n % 2)} for n in range(50)])
    chosen = GroupSettings(output_dir=tmp_path, validation_share=0.5)
    problems = {f"p{number:02}": f"# {statement}" for number in range(50)}
    others = {f"q{number:02}": STORY.format(WORDS[number % 10] * (5 + number // 10)) for number in range(30)}
    splits = split_problems(chosen, problems | others)
    assert len({splits[name] for name in problems}) == 1
    assert len({splits[name] for name in others}) == 2
    kept = split_problems(replace(chosen, evaluation_files=(evaluated,)), problems | others)
    assert kept == {name: splits[name] for name in others}


def test_statements_are_similar_by_their_letters_and_not_by_boilerplate():
    common = "The input is given from standard input in the following format, and the answer is printed in one line. "
    statements = [common + STORY.format(word * 2) for word in WORDS]
    statements += [common + STORY.format("zerozero").replace(" ", "\n$") + "Again."]
    statements += [common + "".join(f"{number} cats. " for number in range(200, 230))]
    statements += [common + str(number) for number in range(30)]
    assert similar_pairs(list(map(letters, statements)), 0.9) == [(0, 10)]
    assert similar_pairs([], 0.5) == similar_pairs(["a"], 0.5) == similar_pairs(["", "a"], 0.5) == []


def test_faster_accepted_programs_can_be_worth_more(data, tmp_path):
    rows = [row(f"s00000001{place}", cpu_time=str(time)) for place, time in enumerate((1, 2, 2, 4))]
    rows += [row(f"s00000002{place}", status="Wrong Answer", cpu_time="0") for place in range(4)]
    _, folder = run(data.add(0, rows), tmp_path, rewards=RewardLevels(runtime_bonus=0.4))
    rewards = {origin: round(one.reward, 6) for origin, one in responses(folder).items() if one.reward > 0}
    assert rewards == {"s000000010": 1.3, "s000000011": 1.1, "s000000012": 1.1, "s000000013": 1.0}


@pytest.mark.slow
def test_what_is_too_long_for_the_policy_is_left_out(data, tmp_path, policy):
    rows = [row(f"s00000000{place}", status="Accepted" if place < 4 else "Wrong Answer") for place in range(8)]
    data.add(0, rows, {"s000000000": b"# " + b"xyzzy " * 3000 + b"\nprint(0)"})
    data.add(
        1, [row("s000100000", "p00001"), row("s000100001", "p00001", "Wrong Answer")], html=page(1) + "<p>xyzzy " * 4000
    )
    summary, folder = run(data, tmp_path, model_name=policy, max_tokens=2000)
    assert len(responses(folder)) == 6
    assert "s000000000" not in responses(folder)
    assert summary["programs"]["dropped: over max_tokens"] == 1
    assert summary["problems"][writing.LONG_PROMPT] == 1
    assert summary["programs"][writing.LONG_PROMPT] == 2


@pytest.mark.slow
def test_a_policy_that_cannot_end_a_response_is_refused_before_anything_is_read(tmp_path, policy, data):
    folder = shutil.copytree(policy, tmp_path / "endless")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            settings = json.loads((folder / name).read_text())
            settings.pop("eos_token", None)
            (folder / name).write_text(json.dumps(settings))
    with pytest.raises(UserError, match="eos_token"):
        run(data.fill(1), tmp_path, model_name=str(folder))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["Project_CodeNet", "Other_CodeNet"])
def test_other_data_does_not_replace_results_and_the_same_data_does(data, tmp_path, name):
    _, folder = run(data.fill(3), tmp_path)
    results = {path: path.read_bytes() for path in folder.glob("*.jsonl")}
    run(data, tmp_path)
    other = DataSet(tmp_path / "elsewhere" / name).fill(2)
    with pytest.raises(UserError, match=r"out/.*\.jsonl was made (from other data|with other settings \(inputs)"):
        run(other, tmp_path)
    assert {path: path.read_bytes() for path in folder.glob("*.jsonl*")} == results
    assert json.loads((folder / "train.run.json").read_text())["arguments"]["inputs"] == ["Project_CodeNet"]


def test_the_summary_says_how_many_pages_have_each_part(data, tmp_path):
    data.fill(3)
    data.add(3, [row("s000300000", "p00003")], html="<p>No sample.</p><h3>Constraints</h3><p>n is 1.</p>")
    data.add(4, [row("s000400000", "p00004")], html=page(4, "<img src=a.png><h3>Constraints</h3>"))
    data.add(5, [row("s000500000", "p00005")], html=" ")
    summary, _ = run(data, tmp_path)
    assert summary["first left out"][codenet.NO_PAGE] == ["p00005"]
    counts = {"statement": 5, "samples": 4, "constraints section": 2, "figures": 1}
    assert [*summary["pages"].values()] == [6, *counts.values()]


def test_a_split_without_a_group_is_refused_and_nothing_is_left(data, tmp_path):
    with pytest.raises(UserError, match=r"validation\.jsonl.*--validation_share"):
        run(data.fill(1), tmp_path, validation_share=0.001)
    with pytest.raises(UserError, match=r"train\.jsonl.*--validation_share"):
        run(data, tmp_path, validation_share=0.999)
    data.add(0, [row("s000000000")])
    with pytest.raises(UserError, match=r"train\.jsonl"):
        run(data, tmp_path, "none")
    assert not list(Path(tmp_path).rglob("train.jsonl*"))
