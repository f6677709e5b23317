"""Groups from Project CodeNet's files: every submission is accounted for, and folders and archives give the same."""

import json
import os
import shutil
import tarfile
import tempfile
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support import write_lines

from cobalt.datasets import codenet, codenet_files
from cobalt.datasets.codenet import CodeNetSettings, codenet_groups
from cobalt.datasets.offline import contrast, writing
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
WRONG = {"status": "Wrong Answer"}


def row(submission, problem="p00000", status="Accepted", **fields):
    values = submission, problem, "u1", "1500000000", "Python", "PyPy3 (7.3.0)", "py", status, "20", "9000", "20", ""
    return ",".join((dict(zip(HEADER.split(","), values, strict=True)) | fields).values())


def page(number, extra=""):
    samples = "<h3>Sample Input 1</h3><pre>1 2\n</pre><h3>Sample Output 1</h3><pre>3\n</pre>"
    return f"<h1>Problem</h1><p>{STORY.format(WORDS[number % 10] * (1 + number // 10))}</p>{extra}{samples}"


def add(root, number, submissions, html=None):
    """Add a problem to a data set: fields of each submission, and its source, in which N is its number; None: none."""
    name = f"p{number:05}"
    sources = root / f"data/{name}/Python"
    for folder in (root / "metadata", root / "problem_descriptions", sources):
        folder.mkdir(parents=True, exist_ok=True)
    lines = [HEADER]
    for index, (fields, source) in enumerate(submissions):
        submission = f"s{number:04}{index:05}"
        lines.append(row(submission, **{"problem": name} | fields))
        if source is not None:
            (sources / f"{submission}.py").write_bytes(source.replace(b"N", str(index).encode()))
    (root / "metadata" / f"{name}.csv").write_text("\n".join(lines) + "\n", newline="")
    if html != "":
        (root / "problem_descriptions" / f"{name}.html").write_text(html or page(number), encoding="utf-8")


def fill(root, problems):
    """Problems with three accepted and five wrong submissions each."""
    for number in range(problems):
        add(root, number, [({}, b"print(N)\n")] * 3 + [(WRONG, b"print(-N)\n")] * 5)
    return root


@pytest.fixture
def data(tmp_path):
    return tmp_path / "Project_CodeNet"


def run(inputs, tmp_path, name="out", **fields):
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    chosen = {"validation_share": 0.0, "near_duplicates": 2.0, "group_size": 2} | fields
    settings = CodeNetSettings(input_paths=inputs, output_dir=tmp_path / name, **chosen)
    return codenet_groups(settings).summary, settings.output_dir


def responses(folder):
    return {one.origin: one for group in read_groups(folder / "train.jsonl") for one in group.responses}


FINE = b"print(N)\n"
COMPILE_ERROR = {"status": "Compile Error", "cpu_time": "", "memory": ""}
UNNAMED = {"original_language": "Python"}
NEEDED = ("submission_id", "problem_id", "status", "original_language", "code_size", "cpu_time", "memory")
SUBMISSIONS = [
    *(({"status": name}, b"print(N", status) for name, status in codenet.STATUSES.items()),
    *(({"status": name}, FINE, codenet.UNJUDGED) for name in sorted(codenet.NOT_JUDGED)),
    *[({"status": "Dreaming"}, FINE, f"{codenet.UNKNOWN_STATUS} 'Dreaming'")] * 2,
    *(({field: "-1"}, FINE, codenet.BAD_FIELD) for field in ("cpu_time", "memory", "code_size")),
    *(({"cpu_time": number}, FINE, codenet.BAD_FIELD) for number in ("many", "9" * 5000)),
    *(({field: ""}, FINE, codenet.BAD_FIELD) for field in NEEDED),
    *(({"original_language": name}, FINE, codenet.PYTHON_2) for name in ("Python2", "Python (2.7.6)", "PyPy2 (5.6.0)")),
    *(({"original_language": name}, FINE, Status.ACCEPTED) for name in ("PyPy3 (2.4.0)", "Python (3.4.3)", "Python3")),
    (UNNAMED, FINE, Status.ACCEPTED),
    (UNNAMED, b"print N", codenet.NOT_PYTHON_3),
    (COMPILE_ERROR, b"print 'N'", Status.COMPILE_ERROR),
    (COMPILE_ERROR, b"print(f'{N}')", codenet.COMPILES),
    ({}, None, codenet.NO_SOURCE),
    ({}, b"# \xff", codenet.BAD_SOURCE),
    ({}, b" \n", codenet.BAD_SOURCE),
    ({}, b"#" * (codenet_files.LARGEST_SOURCE + 1), codenet.BAD_SOURCE),
    ({}, b"\xef\xbb\xbfprint(N)\r\n", Status.ACCEPTED),
]


def test_every_submission_and_every_problem_ends_in_one_count_and_used_ones_have_their_status(data, tmp_path):
    add(data, 0, [(fields, source) for fields, source, _ in SUBMISSIONS])
    add(data, 1, [({}, FINE), ({"language": "C++"}, None)], html="")
    add(data, 2, [({}, FINE)], html="<p>No sample.</p><h3>Constraints</h3><p>n is 1.</p>")
    add(data, 3, [({}, FINE)], html=page(3, "<img src=a.png><h3>Constraints</h3>"))
    add(data, 4, [], html=" ")
    summary, folder = run(data, tmp_path, contrast="any")
    became = {f"s0000{index:05}": what for index, (_, _, what) in enumerate(SUBMISSIONS)}
    used = {submission: what for submission, what in became.items() if isinstance(what, Status)}
    assert len(used) % 2 == 0, "groups of two must take them all"
    read = responses(folder)
    assert {submission: one.status for submission, one in read.items()} == used
    assert all(one.reward == RewardLevels().of(one.status) for one in read.values())
    assert program_of(read[max(used)].text) == f"print({len(SUBMISSIONS) - 1})"
    dropped = Counter(what for what in became.values() if not isinstance(what, Status))
    others = {codenet.NO_PAGE: 1, codenet.NO_SAMPLE: 1, contrast.LEFT_OVER: 1, contrast.USED: len(used)}
    counts = {name: count for name, count in summary["programs"].items() if count}
    assert counts == {"read": len(SUBMISSIONS) + 3} | dropped | others
    assert summary["problems"] == {
        "read": 5, codenet.NO_PAGE: 2, codenet.NO_SAMPLE: 1, writing.NO_GROUP: 1, "in train.jsonl": 1,
    }  # fmt: skip
    assert list(summary["pages"].values()) == [4, 3, 2, 2]
    assert summary["first left out"][codenet.NO_PAGE] == ["p00001", "p00004"]


def test_faster_accepted_programs_can_be_worth_more(data, tmp_path):
    add(data, 0, [({"cpu_time": time}, FINE) for time in "1224"] + [(WRONG | {"cpu_time": "0"}, FINE)] * 4)
    _, folder = run(data, tmp_path, rewards=RewardLevels(runtime_bonus=0.4))
    rewards = {origin[-1]: round(one.reward, 6) for origin, one in responses(folder).items() if one.reward > 0}
    assert rewards == {"0": 1.3, "1": 1.1, "2": 1.1, "3": 1.0}


# Files


def tar(data, path, mode="w:gz", names=("metadata", "data", "problem_descriptions")):
    with tarfile.open(path, mode) as archive:
        for name in names:
            archive.add(data / name, f"Project_CodeNet/{name}")
    return path


def content(folder):
    manifest = json.loads((folder / "train.run.json").read_text())
    lines = (sorted((folder / f"{name}.jsonl").read_text().splitlines()) for name in ("train", "problems"))
    return manifest["summary"], *lines


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_archives_and_parts_give_the_same_as_their_folder(data, tmp_path, mode):
    add(fill(data, 4), 4, [({}, None), (WRONG, FINE)])
    _, folder = run(data, tmp_path)
    archives = [tar(data, tmp_path / "codenet.tar", mode), tmp_path / "backwards.tar"]
    with tarfile.open(archives[1], "w") as output:
        for path in sorted(data.rglob("*.*"), reverse=True):
            output.add(path, path.relative_to(data.parent))
    for archive in archives:
        _, unpacked = run(archive, tmp_path, archive.stem)
        assert content(folder) == content(unpacked), archive
    pages, apart = tar(data, tmp_path / "pages.tar.gz", names=["problem_descriptions"]), tmp_path / "apart"
    apart.mkdir()
    (data / "metadata").rename(apart / "metadata")
    shutil.rmtree(data / "problem_descriptions")
    (tmp_path / "link").symlink_to(data)
    _, together = run((tmp_path / "link", apart, pages), tmp_path, "together")
    assert content(folder) == content(together)


def archive_with(path, members):
    """An archive of members by name; a number stands for so many zeros."""
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT, compresslevel=1) as output:
        for name, content in members.items():
            with tempfile.TemporaryFile() as file:
                file.write(b"" if isinstance(content, int) else content)
                member = tarfile.TarInfo(name)
                member.size = file.truncate(content if isinstance(content, int) else None)
                file.seek(0)
                output.addfile(member, file)
    return path


SOURCE = {"data/p00000/Python/s000000001.py": b"print(1)\n"}
METADATA = {"metadata/p00000.csv": f"{HEADER}\n{row('s000000001')}\n".encode()}
PAGE = "problem_descriptions/p00000.html"


MANY = {f"data/p00000/Python/s{n:09}.py": codenet_files.LARGEST_SOURCE for n in range(257)}
TOO_LARGE = {
    "metadata/p00000.csv": {"metadata/p00000.csv": codenet_files.LARGEST_PART + 1, **SOURCE},
    "p00000.html": {**METADATA, PAGE: codenet_files.LARGEST_PART + 1},
    "header": {**METADATA, "data/p00000/Python/" + "s" * (64 << 20): b""},
    f"p00000 .*{codenet_files.LARGEST_PART}": {**METADATA, PAGE: page(0).encode(), **MANY},
}


@pytest.mark.parametrize("named", TOO_LARGE)
@pytest.mark.slow
def test_parts_of_an_archive_that_are_too_large_are_refused_before_they_are_in_memory(tmp_path, named):
    archive = archive_with(tmp_path / "bomb.tar.gz", TOO_LARGE[named])
    tracemalloc.start()
    with pytest.raises(UserError, match=rf"bomb\.tar\.gz.*{named}") as refused:
        run(archive, tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < codenet_files.LARGEST_PART + (64 << 20) if named.startswith("p00000 ") else most < 16 << 20
    assert len(str(refused.value)) < 1000
    assert not list((tmp_path / "out").glob("*.jsonl*"))


def header_of(size, name="data/p00000/Python/s1.py", kind=tarfile.REGTYPE):
    """The header of a member that claims a size, in the binary form of GNU tar."""
    member = tarfile.TarInfo(name)
    member.type = kind
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\x80" + size.to_bytes(11, "big")
    header[482] = kind == tarfile.GNUTYPE_SPARSE  # its map goes on after the header
    header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * ord(" "))
    return bytes(header)


SPARSE = header_of(0, kind=tarfile.GNUTYPE_SPARSE)
ENDLESS = (b"1".zfill(12) * 42 + b"\1").ljust(512, b"\0")  # a part of a map, which says that another follows
KINDS = [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE, b"Z"]
NAMES = ["data/p00000/Python/s000000001.py", "metadata/p00000.csv", "notes.txt"]
# Of an archive, what to do with its bytes, of which the last member begins at `end`.
DAMAGES = {
    "packed and cut off": ("w:gz", lambda whole, _: whole[:-200]),
    "no archive": ("w:gz", lambda *_: b"not an archive"),
    "packed with zeros": ("w:gz", lambda whole, _: whole[:600] + b"\0" * 99 + whole[699:]),
    **{f"cut {n} later": ("w", lambda whole, end, n=n: whole[: end + n]) for n in (0, 99, 400)},
    "damaged after a file": ("w", lambda whole, end: whole[:end] + b"\1" * 512 + whole[end + 512 :]),
    **{f"sparse {n}": ("w", lambda whole, end, n=n: whole[:end] + SPARSE + ENDLESS * n) for n in (0, 3)},
    **{
        f"size {size:x}, {kind}, {name}": (
            "w", lambda whole, end, claimed=(size, name, kind): whole[:end] + header_of(*claimed) + bytes(2048)
        )
        for size in (1 << 40, (1 << 88) - 1) for kind in KINDS for name in NAMES
    },
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_hostile_archive_is_a_mistake_of_the_user_and_leaves_no_result(data, tmp_path, damage):
    mode, make = DAMAGES[damage]
    archive = tar(fill(data, 3), tmp_path / "codenet.tar", mode)
    with tarfile.open(archive) as whole:
        end = whole.getmembers()[-1].offset
    archive.write_bytes(make(archive.read_bytes(), end))
    with pytest.raises(UserError, match=r"codenet\.tar" + ".*sparse" * damage.startswith("sparse")):
        run(archive, tmp_path)
    assert not list((tmp_path / "out").glob("*.jsonl"))


SPECIAL = {
    **{f"a link to {target}": lambda path, target=target: path.symlink_to(target) for target in ("/dev/zero", "none")},
    "a link": lambda path: path.symlink_to(path.parents[4] / "secret.py"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_sources_that_are_not_regular_files_are_not_read_and_other_files_passed_over(data, tmp_path, kind):
    folder, secret = fill(data, 2) / "data" / "p00000" / "Python", tmp_path / "secret.py"
    secret.write_text("print('secret')\n")
    source = folder / "s000000000.py"
    source.unlink()
    SPECIAL[kind](source)
    assert kind != "a link" or source.read_text() == secret.read_text()
    for name in ("s000000000.py.bak", "._s000000000.py", "notes"):
        (folder / name).write_text("print('secret')\n")
    (folder / "cache").mkdir()
    summary, output = run(data, tmp_path)
    assert summary["programs"][codenet.NO_SOURCE] == 1
    assert "secret" not in "".join(path.read_text() for path in output.iterdir())


def test_links_of_an_archive_are_not_followed(data, tmp_path):
    archive, secret = tar(fill(data, 1), tmp_path / "codenet.tar", "w"), tmp_path / "secret.py"
    secret.write_text("secret = 1\n")
    with tarfile.open(archive, "a") as output:
        for index, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE)):
            link = tarfile.TarInfo(f"data/p00000/Python/s90000000{index}.py")
            link.type, link.linkname = kind, str(secret)
            output.addfile(link)
    ((_, sources),) = codenet_files.read_sources([archive], ["p00000"])
    assert not any(name.startswith("s9") for name in sources)


def test_sources_of_a_problem_in_two_places_are_refused(data, tmp_path):
    archive = tar(fill(data, 2), tmp_path / "codenet.tar.gz")
    scattered = archive_with(
        tmp_path / "scattered.tar.gz",
        {f"data/p0000{name}/Python/s00000000{index}.py": b"" for index, name in enumerate("010")},
    )
    described = tar(data, tmp_path / "m.tar", "w", ("metadata", "problem_descriptions"))
    for inputs in ((data, archive), (scattered, described)):
        with pytest.raises(UserError, match="p00000"):
            run(inputs, tmp_path)


def test_a_folder_that_is_not_codenet_is_refused_by_what_it_lacks(data, tmp_path):
    _, folder = run(fill(data, 1), tmp_path)
    path = data / "metadata" / "p00000.csv"
    path.write_text("\ufeff" + path.read_text().replace("filename_ext,", "").replace(",py,", ","))
    _, without = run(data, tmp_path, "without")  # a byte-order mark, and no column that nothing needs
    assert (without / "train.jsonl").read_bytes() == (folder / "train.jsonl").read_bytes()
    for spoil, names in (
        (lambda: path.write_text("submission_id,language\ns1,Python\n"), "cpu_time"),
        (lambda: os.truncate(path, codenet_files.LARGEST_PART + 1), r"metadata/p00000\.csv"),
        (path.unlink, "metadata"),
        (lambda: shutil.move(folder / "train.jsonl", path) and shutil.rmtree(data / "data"), "data"),
    ):
        spoil()
        with pytest.raises(UserError, match=names):
            run(data, tmp_path, "refused")


@pytest.mark.parametrize("name", ["Project_CodeNet", "Other_CodeNet"])
def test_other_data_does_not_replace_results_and_the_same_data_does(data, tmp_path, name):
    _, folder = run(fill(data, 3), tmp_path)
    results = {path: path.read_bytes() for path in folder.glob("*.jsonl")}
    run(data, tmp_path)
    with pytest.raises(UserError, match=r"out/.*\.jsonl.*" + name.removeprefix("Project_CodeNet")):
        run(fill(tmp_path / "elsewhere" / name, 2), tmp_path)
    assert {path: path.read_bytes() for path in folder.glob("*.jsonl*")} == results
    assert json.loads((folder / "train.run.json").read_text())["arguments"]["inputs"] == ["Project_CodeNet"]


# Splits


def test_similar_problems_are_in_one_split_and_those_of_an_evaluation_are_left_out(data, tmp_path):
    fill(data, 30)
    for number in range(10, 20):  # the same statement as ten problems before, with another title
        html = page(number - 10).replace("<h1>Problem</h1>", "<h1>Another contest</h1>")
        (data / "problem_descriptions" / f"p{number:05}.html").write_text(html)
    asked = [{"question": STORY.format("two").upper()}, {"text": "Something else entirely. " + STORY.format("five")}]
    files = [write_lines(tmp_path / "evaluated.jsonl", asked)]
    summary, folder = run(data, tmp_path, validation_share=0.5, evaluation_files=tuple(files))
    train, validation = (
        {int(group.problem_id[1:]) for group in read_groups(folder / f"{split}.jsonl")}
        for split in ("train", "validation")
    )
    assert not train & validation
    assert train | validation == set(range(30)) - {2, 5, 12, 15}
    assert all((number in train) == (number + 10 in train) for number in range(10))
    assert (summary["problems"][writing.EVALUATED], summary["programs"][writing.EVALUATED]) == (4, 32)
    problems = {problem.id: problem for problem in load_problems(folder / "problems.jsonl")}
    assert len(problems) == 26
    assert problems["p00003"].tests.to_record() == {"inputs": ["1 2\n"], "outputs": ["3\n"]}
    for named, rows in (("bad.jsonl, line 1", [{"id": 1}]), ("bad.jsonl", [])):
        with pytest.raises(UserError, match=named):
            run(data, tmp_path, "refused", evaluation_files=(*files, write_lines(tmp_path / "bad.jsonl", rows)))


@pytest.mark.parametrize("statement", ["Print one.", STORY.format("two")])
def test_equal_statements_are_never_in_two_splits_however_short_and_however_many(tmp_path, statement):
    evaluated = write_lines(tmp_path / "e.jsonl", [{"question": f"{statement}!" * (1 + n % 2)} for n in range(50)])
    chosen = GroupSettings(output_dir=tmp_path, validation_share=0.5)
    problems = {f"p{number:02}": f"# {statement}" for number in range(50)}
    others = {f"q{number:02}": STORY.format(WORDS[number % 10] * (5 + number // 10)) for number in range(30)}
    splits = split_problems(chosen, problems | others)
    assert len({splits[name] for name in problems}) == 1
    assert len({splits[name] for name in others}) == 2
    split = split_problems(replace(chosen, evaluation_files=(evaluated,)), problems | others)
    assert split == {name: splits[name] for name in others}


def test_statements_are_similar_by_their_letters_and_not_by_boilerplate():
    common = "The input is given from standard input in the following format, and the answer is printed in one line. "
    statements = [common + STORY.format(word * 2) for word in WORDS]
    statements += [common + STORY.format("zerozero").replace(" ", "\n$") + "Again."]
    statements += [common + "".join(f"{number} cats. " for number in range(200, 230))]
    statements += [common + str(number) for number in range(30)]
    assert list(similar_pairs(list(map(letters, statements)), 0.9)) == [(0, 10)]
    assert not any(list(similar_pairs(few, 0.5)) for few in ([], ["a"], ["", "a"]))


def test_a_split_without_a_group_is_refused_and_nothing_is_left(data, tmp_path):
    fill(data, 1)
    for share, names in ((0.001, "validation"), (0.999, "train")):
        with pytest.raises(UserError, match=rf"{names}\.jsonl.*--validation_share"):
            run(data, tmp_path, validation_share=share)
    add(data, 0, [({}, FINE)])
    with pytest.raises(UserError, match=r"train\.jsonl"):
        run(data, tmp_path, "none")
    assert not list(Path(tmp_path).rglob("train.jsonl*"))


# The policy


@pytest.mark.slow
def test_what_is_too_long_for_the_policy_is_left_out(data, tmp_path, policy):
    long = b"# " + b"xyzzy " * 3000 + b"\nprint(0)"
    add(data, 0, [({}, long), *[({}, FINE)] * 3, *[(WRONG, b"print(-N)")] * 4])
    add(data, 1, [({}, FINE), (WRONG, FINE)], html=page(1) + "<p>xyzzy " * 4000)
    summary, folder = run(data, tmp_path, model_name=policy, max_tokens=2000)
    assert len(responses(folder)) == 6
    assert "s000000000" not in responses(folder)
    assert summary["programs"][contrast.TOO_LONG] == 1
    assert (summary["problems"][writing.LONG_PROMPT], summary["programs"][writing.LONG_PROMPT]) == (1, 2)


@pytest.mark.slow
def test_a_policy_that_cannot_end_a_response_is_refused_before_anything_is_read(tmp_path, policy, data):
    folder = shutil.copytree(policy, tmp_path / "endless")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            settings = json.loads((folder / name).read_text())
            settings.pop("eos_token", None)
            (folder / name).write_text(json.dumps(settings))
    with pytest.raises(UserError, match="eos_token"):
        run(fill(data, 1), tmp_path, model_name=str(folder))
    assert not (tmp_path / "out").exists()
