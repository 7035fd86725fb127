"""A generation that survives: kill this program anywhere, run it again, and it goes on to the same text."""

import decodelog

with decodelog.open("sqlite:///survives.db") as log:
    job = log.submit(
        "smollm2-135m-instruct", user="Tell a long story about a river.", max_new_tokens=120, key="the-river"
    )
    for piece in job.run(cache_dir="caches"):
        print(piece.text, end="", flush=True)
    usage = job.result().usage
    print(f"\n\n{usage.completion_tokens} tokens, {usage.attempts} tenures, {usage.recomputed_tokens} computed again")
