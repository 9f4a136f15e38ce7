"""Tokenise a large corpus once, with all cores, into a token file for data=tokens or for Megatron.

    python scripts/prepare_data.py --source text --paths 'corpus/**/*.txt' --output tokens/corpus
    python -m trainer data=tokens data.paths='[tokens/corpus.bin]' ...

Writes OUTPUT.bin (ids), OUTPUT.json (type, vocabulary, checksum) and, for a BPE trained on the corpus,
OUTPUT.tokenizer.json. Stopped in the middle, the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Command line; options of the corpus are named as in the trainer's `data` group."""
    from trainer.config import DataConfig

    defaults = DataConfig()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpus = parser.add_argument_group("corpus")
    corpus.add_argument("--source", choices=("text", "hf", "python_stdlib"), default="text", help="default: text")
    corpus.add_argument("--paths", nargs="+", default=[], metavar="FILE", help="UTF-8 files or globs (text)")
    corpus.add_argument("--name", help="name, folder or file of a data set: JSON lines, Parquet, CSV ... (hf)")
    corpus.add_argument("--split", default=defaults.split, help="split (hf); default: %(default)s")
    corpus.add_argument("--column", default=defaults.column, help="text column (hf); default: %(default)s")
    corpus.add_argument("--subset", help="configuration of a data set that has several (hf)")
    corpus.add_argument("--revision", help="commit or tag of a data set of the hub (hf)")
    tokens = parser.add_argument_group("tokens")
    tokens.add_argument(
        "--tokenizer",
        default=defaults.tokenizer,
        help="bpe (trained on a sample of the corpus), bytes, a tokenizer.json, "
        "or a folder or name of a transformers tokenizer; default: %(default)s",
    )
    tokens.add_argument(
        "--bpe-vocab-size", type=int, default=defaults.bpe_vocab_size, help="of a trained BPE; default: %(default)s"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--output", required=True, type=Path, metavar="PATH", help="of the files, without .bin")
    output.add_argument("--megatron", action="store_true", help="also write OUTPUT.idx, Megatron's index")
    output.add_argument("--overwrite", action="store_true", help="replace OUTPUT.bin")
    output.add_argument(
        "--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: the cores, %(default)s here"
    )
    output.add_argument(
        "--part-mib", type=float, default=8, help="MiB of text that a process writes at a time; default: %(default)s"
    )
    output.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run; exit status 2 for an option that does not fit, 130 after an interrupt."""
    options = parse(arguments)
    # Here, since each worker process imports this file.
    from trainer.config import DataConfig
    from trainer.data.tokenize_corpus import tokenize_corpus

    corpus = ("source", "paths", "name", "split", "column", "subset", "revision", "tokenizer", "bpe_vocab_size")
    output = options.output.with_suffix("") if options.output.suffix == ".bin" else options.output
    start = time.monotonic()
    try:
        written = tokenize_corpus(
            DataConfig(**{name: getattr(options, name) for name in corpus}),
            output,
            processes=options.processes,
            megatron=options.megatron,
            overwrite=options.overwrite,
            progress=not options.quiet,
            part_bytes=int(options.part_mib * (1 << 20)),
        )
    except ValueError as error:
        as_flags = re.sub(r"\bdata\.([a-z_]+)", lambda match: "--" + match[1].replace("_", "-"), str(error))
        print(f"prepare_data: {as_flags}", file=sys.stderr)
        return 2
    except BrokenProcessPool:
        print("prepare_data: a worker was killed (out of memory?); the same command goes on", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("prepare_data: interrupted; the same command goes on", file=sys.stderr)
        return 130
    seconds = time.monotonic() - start
    print(f"{output}.bin: {written.tokens} tokens of {written.dtype}, vocabulary {written.vocab_size}, {seconds:.1f} s")
    dtype = "" if options.megatron else f" data.token_dtype={written.dtype}"
    print(f"python -m trainer data=tokens data.paths='[{output}.bin]'{dtype} model.vocab_size={written.vocab_size}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
