"""`cache-indexer hash`, with arguments and line by line."""

import io
import json
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from indexer.cli.hash import register, stream
from indexer.engines.base import MmItem, Prompt
from indexer.engines.vllm.hashing import VllmHashRule

app = typer.Typer()
app.callback()(lambda: None)
register(app)

TOKENS = [9707, 0, 358, 3900, 374, 1234, 5678, 9012]
BLOCKS = ["76031c9f7578fd85", "9f19cf1390759f69"]


def run(*args: str) -> Any:
    return CliRunner().invoke(app, ["hash", *args])


def ask(*lines: dict[str, Any] | str) -> tuple[bool, list[dict[str, Any]]]:
    out = io.BytesIO()
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    good = stream([text.encode("utf-8", "surrogatepass") + b"\n" for text in texts], out)
    return good, [json.loads(line) for line in out.getvalue().splitlines()]


def hashed(rule: VllmHashRule, prompt: Prompt) -> dict[str, list[str]]:
    digests = rule.digests(prompt)
    return {"block_hashes": [d[-8:].hex() for d in digests], "full": [d.hex() for d in digests]}


def test_defaults_of_a_line() -> None:
    good, replies = ask({"token_ids": TOKENS, "block_size": 4}, {"token_ids": [], "block_size": 4})
    assert good
    assert replies[0]["block_hashes"] == BLOCKS
    assert replies[0] == hashed(VllmHashRule("sha256_cbor", "0"), Prompt(TOKENS, 4))
    assert replies[1] == {"block_hashes": [], "full": []}


def test_every_key_of_a_line_counts() -> None:
    mm = [{"identifier": "img", "offset": 1, "length": 2}]
    lora = {"lora_name": "l", "lora_path": "/p"}
    line = {"token_ids": TOKENS, "block_size": 2, "cache_salt": "s", **lora, "mm": mm}
    prompt = Prompt(TOKENS, 2, "s", "l", "/p", (MmItem("img", 1, 2),))
    _, replies = ask(
        line,
        {**line, "algo": "sha256", "seed": "7", "dialect": "0.18.0"},
        {**line, "seed": None, "dialect": "0.29.0"},
        {**line, "algo": "xxhash", "seed": None, "none_hash": "00ff00"},
        {**line, "none_hash": ""},
    )
    assert replies == [
        hashed(VllmHashRule("sha256_cbor", "0"), prompt),
        hashed(VllmHashRule("sha256", "7", "0.18.0"), prompt),
        hashed(VllmHashRule("sha256_cbor", None, "0.29.0"), prompt),
        hashed(VllmHashRule("xxhash", None, none_hash=b"\x00\xff\x00"), prompt),
        hashed(VllmHashRule("sha256_cbor", "0", none_hash=b""), prompt),
    ]
    assert len({reply["block_hashes"][0] for reply in replies}) == 5


GOOD = {"token_ids": [1, 2], "block_size": 1}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("", "truncated"), ("nonsense", "malformed"), ("[]", "Expected `object`"), ("[" * 10000, ""),
        ({"token_ids": [1]}, "block_size"), ({"block_size": 1}, "token_ids"),
        ({**GOOD, "token_ids": [1.0]}, "float"), ({**GOOD, "token_ids": [True]}, "bool"),
        ({**GOOD, "token_ids": ["1"]}, "str"), ({**GOOD, "token_ids": [2**64]}, "2^64-1"),
        ({**GOOD, "token_ids": [-1]}, "token_ids[0]: -1"), ({**GOOD, "token_ids": None}, "null"),
        ({**GOOD, "block_size": 0}, "block_size: 0"), ({**GOOD, "block_size": 1.0}, "float"),
        ({**GOOD, "block_size": True}, "bool"), ({**GOOD, "seed": 0}, "seed"),
        ({**GOOD, "algo": "md5"}, "'md5'"), ({**GOOD, "dialect": "new"}, "'new'"),
        ({**GOOD, "seed": None, "algo": "xxhash"}, "random"),
        ({**GOOD, "seed": None, "dialect": "0.28.0"}, "random"),
        ({**GOOD, "none_hash": "0g"}, "none_hash"), ({**GOOD, "none_hash": "0"}, "none_hash"),
        ({**GOOD, "none_hash": "00 00"}, "none_hash"), ({**GOOD, "salt": "s"}, "salt"),
        ({**GOOD, "lora_name": "l"}, "lora_path"), ({**GOOD, "mm": [{"identifier": "i"}]}, "offset"),
        ({**GOOD, "mm": [{"identifier": "i", "offset": -1, "length": 1}]}, "offset"),
        ('{"token_ids": [1e999], "block_size": 1}', ""), ('{"token_ids": [NaN], "block_size": 1}', ""),
        (f'{{"token_ids": [{"9" * 5000}], "block_size": 1}}', ""),
        ('{"token_ids": [1], "block_size": 1, "cache_salt": "\ud800"}', "UTF-8"),
        ('{"token_ids": [1], "block_size": 1, "cache_salt": "\\ud800"}', ""),
        ('{"token_ids": [1], "block_size": 1} x', "trailing"),
    ],
    ids=lambda value: str(value)[:40].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_a_bad_line_is_answered_in_its_place(bad: Any, message: str) -> None:
    good, replies = ask(GOOD, bad, GOOD)
    assert not good
    assert len(replies) == 3
    assert replies[0] == replies[2]
    assert replies[1].keys() == {"error"}
    assert message in replies[1]["error"]


def test_lines_are_answered_as_they_come() -> None:
    code = "from tests.unit.test_cli_hash import app; app()"
    command = [sys.executable, "-c", code, "hash", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin
        assert child.stdout
        for _ in range(3):
            child.stdin.write(json.dumps({"token_ids": TOKENS, "block_size": 4}).encode() + b"\n")
            child.stdin.flush()
            assert json.loads(child.stdout.readline())["block_hashes"] == BLOCKS
        child.stdin.write(b"bad\n")
        rest, _ = child.communicate()
        assert json.loads(rest).keys() == {"error"}
    assert child.returncode == 1


def test_arguments_and_files_give_the_same(tmp_path: Any) -> None:
    numbers = [str(token) for token in TOKENS]
    array, blanks = tmp_path / "array", tmp_path / "blanks"
    array.write_text(json.dumps(TOKENS))
    blanks.write_text("\n".join(numbers))
    for args in (numbers, ["--tokens", str(array)], ["--tokens", str(blanks)]):
        result = run(*args, "--block-size", "4")
        assert result.exit_code == 0
        assert json.loads(result.stdout)["block_hashes"] == BLOCKS


def test_options_reach_the_rule() -> None:
    options = [
        "--seed",
        "7",
        "--cache-salt",
        "s",
        "--dialect",
        "0.18.0",
        "--lora-name",
        "l",
        "--algo",
        "sha256",
    ]
    result = run("1", "2", "--block-size", "1", *options)
    expected = hashed(VllmHashRule("sha256", "7", "0.18.0"), Prompt([1, 2], 1, "s", "l"))
    assert json.loads(result.stdout) == expected
    unset = run("1", "--block-size", "1", "--unset-seed")
    assert json.loads(unset.stdout) == hashed(VllmHashRule("sha256_cbor", None), Prompt([1], 1))


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    result = run("1", "2", "--block-size", "2")
    assert "full digest" in result.stdout
    assert VllmHashRule("sha256_cbor", "0").chains(Prompt([1, 2], 2))[0] in result.stdout


@pytest.mark.parametrize(
    "args",
    [
        (), ("1",), ("--block-size", "1"), ("x", "--block-size", "1"), ("1", "--block-size", "0"),
        ("1", "--tokens", "/dev/null", "--block-size", "1"), ("--tokens", "/no/such", "--block-size", "1"),
        ("18446744073709551616", "--block-size", "1"), ("-", "1", "--block-size", "1"),
        ("1", "--block-size", "1", "--algo", "md5"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_usage_exits_2(args: tuple[str, ...]) -> None:
    assert run(*args).exit_code == 2
