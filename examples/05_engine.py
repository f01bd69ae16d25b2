"""Several texts at once from one model, and a conversation whose state is kept.

python 05_engine.py FOLDER 'Once upon a time' 'The delta rule'
"""

import sys

import libcarry


def main() -> int:
    if len(sys.argv) < 3:
        print("usage: 05_engine.py FOLDER PROMPT...")
        return 0 if len(sys.argv) == 1 else 2
    with libcarry.Engine(sys.argv[1]) as engine:
        requests = [engine.submit(prompt, max_new_tokens=32) for prompt in sys.argv[2:]]
        for request in requests:
            print(repr(request.result()), f"({request.cached_tokens} of {request.prompt_tokens} prompt tokens cached)")
        first = engine.submit(sys.argv[2], max_new_tokens=16, keep_state=True)
        first.result()
        assert first.state is not None
        for seed in (1, 2, 3):  # three ways to go on from the same state
            print(repr(engine.submit(" and", max_new_tokens=8, seed=seed, state=first.state).result()))
        print(engine.statistics())
    return 0


if __name__ == "__main__":
    sys.exit(main())
