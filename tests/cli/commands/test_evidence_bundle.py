"""`sidestream logs export --evidence`: what was claimed, cited and found, in a file that needs no Sidestream."""

import asyncio
import json
import signal
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

from cli.command import Run
from requirements import requirement
from sidestream.testing import FakeProvider, ResponsesScript
from support.citations import citing
from support.web_pages import page, serve

PAGE = "<title>Oslo</title><main><p>Oslo has 700,000 inhabitants. It is old.</p></main>"
CLAIMS = ["Oslo has 700,000 inhabitants.", "Oslo has 900,000 inhabitants.", "Oslo is <i>young</i>."]
KILLED_AT_RENAME = """
import os, runpy, signal, sys

def hook(event, args):
    if event == "os.rename" and str(args[1]).endswith(".zip"):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
runpy.run_module("sidestream.cli", run_name="__main__")
"""


async def converse(sidestream: Run) -> str:
    """Logs a checked answer and a follow-up, and returns the URL of the cited page."""
    async with serve({"/oslo": page(PAGE)}) as site:
        urls = [site.url("/oslo"), site.url("/oslo"), site.url("/gone")]
        script = citing(zip(CLAIMS, urls, ["Oslo", "Oslo", "<b>Gone</b>"], strict=True))
        with FakeProvider([script.reply(), ResponsesScript().text("You are welcome.").reply()]).in_thread() as fake:
            first = "-T", f"web_fetch:allow_hosts={site.host}", "--check", "--log", "How large is Oslo?"
            for args in (first, ("-c", "Thanks")):
                done = await asyncio.to_thread(sidestream, *args, base_url=fake.base_url)
                assert done.returncode == 0, done.stderr
    return urls[0]


@requirement("R232")
async def test_evidence_bundle_is_readable_and_reproducible(sidestream: Run, tmp_path: Path):
    url = await converse(sidestream)
    for name in ("a.zip", "b.zip"):
        done = await asyncio.to_thread(sidestream, "logs", "export", "--evidence", name)
        assert (done.returncode, done.stdout) == (0, "")
        assert f"exported to {name}" in done.stderr
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()

    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == sorted(archive.namelist())
        files = {name: archive.read(name) for name in archive.namelist()}
    digest = sha256(PAGE.encode()).hexdigest()
    kept = f"pages/{digest}.html.txt"
    assert files.keys() == {"SHA256SUMS", "evidence.json", "index.html", kept}
    assert files[kept] == PAGE.encode()
    sums = [f"{sha256(data).hexdigest()}  {name}" for name, data in files.items() if name != "SHA256SUMS"]
    assert files["SHA256SUMS"].decode().splitlines() == sums

    bundle = json.loads(files["evidence.json"])
    first, second = bundle["turns"]
    assert (first["question"], second["question"]) == ("How large is Oslo?", "Thanks")
    assert first["asked_at"] <= second["asked_at"]
    assert f"{CLAIMS[0]} [1]" in first["answer"]
    assert [(claim["text"], claim["source"], claim["state"], claim["page"]) for claim in first["claims"]] == [
        (CLAIMS[0], 1, "quoted", digest),
        (CLAIMS[1], 1, "contradicted", digest),
        (CLAIMS[2], 2, "unreachable", None),
    ]
    assert "700,000" in first["claims"][1]["passage"]
    assert [source["number"] for source in first["sources"]] == [1, 2]
    assert (second["answer"], second["claims"]) == ("You are welcome.", [])
    assert (bundle["pages"][digest]["url"], bundle["pages"][digest]["file"]) == (url, kept)

    shown = files["index.html"].decode()
    for text in ("How large is Oslo?", CLAIMS[0], "contradicted", f'href="{kept}"', digest):
        assert text in shown
    assert "<i>" not in shown
    assert "<b>" not in shown


@requirement("R232")
async def test_killed_export_leaves_no_bundle(sidestream: Run, environment: dict[str, str], tmp_path: Path):
    await converse(sidestream)
    args = "logs", "export", "--evidence", "a.zip"
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", KILLED_AT_RENAME, *args], env=environment, cwd=tmp_path, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "a.zip").exists()
    done = await asyncio.to_thread(sidestream, *args)
    assert done.returncode == 0
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.testzip() is None


@requirement("R232")
def test_evidence_export_refuses_existing_file_and_format(sidestream: Run, tmp_path: Path):
    (tmp_path / "a.zip").write_text("mine")
    for args in (("--evidence", "a.zip"), ("--evidence", "b.zip", "-f", "json"), ("--evidence", "b.zip", "-o", "c")):
        assert sidestream("logs", "export", *args).returncode == 2
    assert (tmp_path / "a.zip").read_text() == "mine"
    assert not (tmp_path / "b.zip").exists()
