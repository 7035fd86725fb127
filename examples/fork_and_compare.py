"""Fork and compare: go on from a prefix of a job in another way, and see at which step and level two jobs part."""

import decodelog

with decodelog.open("sqlite:///forks.db") as log:
    job = log.submit("smollm2-135m-instruct", user="Name a color.", max_new_tokens=12, temperature=1.0, seed=1)
    print("the job: ", "".join(piece.text for piece in job.run()))
    fork = job.fork(4, seed=2)
    print("the fork:", "".join(piece.text for piece in fork.run()))

    again = log.submit("smollm2-135m-instruct", user="Name a color.", max_new_tokens=12, temperature=1.0, seed=1)
    list(again.run())
    print("the same request again:", "the same" if job.compare(again, level="tensor").same else "another run")
    other = log.submit("smollm2-135m-instruct", user="Name a color.", max_new_tokens=12, temperature=1.0, seed=9)
    list(other.run())
    print("with another seed:", job.compare(other, level="decision").found)
