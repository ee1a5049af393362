"""`sidestream index` and what it prints."""

import json
from pathlib import Path

import pytest

from command import run
from portable_index import write_corpus
