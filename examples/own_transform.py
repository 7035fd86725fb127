"""A transform of one's own: a function is sealed into the request by its source, and runs again for an audit."""

import decodelog


def fewer_neighbours(scores, context):
    """After 8 tokens the newest one and its neighbours are disfavoured, the more the longer the output is."""
    if len(context.output) > 8:
        newest = int(context.output[-1])
        scores[max(0, newest - 3) : newest + 4] -= 0.25 * len(context.output)
    return scores


decodelog.register_transform("fewer-neighbours", 1, fewer_neighbours)

with decodelog.open("sqlite:///own.db") as log:
    plain = log.submit("smollm2-135m-instruct", user="Name three rivers.", max_new_tokens=16)
    bent = log.submit(
        "smollm2-135m-instruct", user="Name three rivers.", max_new_tokens=16, own_transforms=["fewer-neighbours"]
    )
    for name, job in (("without it", plain), ("with it", bent)):
        print(f"{name}: {''.join(piece.text for piece in job.run())!r}")
    print(next(line.strip() for line in str(bent.explain(step=2)).splitlines() if "own:" in line))
    print("run again, to the same bits:", bent.audit(reexecute=True).ok)
