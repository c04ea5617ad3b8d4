"""Reading the agent's log."""

from pathlib import Path

from hinet_node.local import logfile


def test_the_last_lines_come_from_both_files_and_no_more_than_asked(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    assert logfile.last_lines(log, 5) == []
    (tmp_path / "agent.log.old").write_text("a\nb\nc\n")
    log.write_text("d\ne\n")
    assert logfile.last_lines(log, 1) == ["e"]
    assert logfile.last_lines(log, 4) == ["b", "c", "d", "e"]
    assert logfile.last_lines(log, 99) == ["a", "b", "c", "d", "e"]
    assert logfile.last_lines(log, 9, until=2) == ["a", "b", "c", "d"]


def test_following_gives_whole_lines_and_survives_a_file_that_is_begun_anew(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    log.write_text("old\n")
    news = logfile.following(log, logfile.size(log), poll_s=0.001)
    with log.open("a") as stream:
        stream.write("first\nsec")
    assert next(news) == "first"
    with log.open("a") as stream:
        stream.write("ond\n")
    assert next(news) == "second"
    log.replace(tmp_path / "agent.log.old")
    log.write_text("anew\n")
    assert next(news) == "anew"
    log.write_text("")
    with log.open("a") as stream:
        stream.write("x\n")
    assert next(news) == "x"


def test_a_very_long_log_is_read_from_its_end_only(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    log.write_bytes(b"x" * 100 + b"\n" + b"".join(b"%019d\n" % number for number in range(500_000)))
    lines = logfile.last_lines(log, 10_000_000)
    assert len(lines) <= logfile.READ_BYTES_MAX // 20
    assert lines[-1] == f"{499_999:019d}"
    assert all(len(line) == 19 for line in lines)
