"""A snapshot with a pending suffix: stop a job in the middle, carry it to another database, and go on there."""

import decodelog

with decodelog.open("sqlite:///here.db") as here:
    job = here.submit("smollm2-135m-instruct", user="Why is the sky blue?", max_new_tokens=32)
    for piece in job.run():
        print(piece.text, end="", flush=True)
        if job.row.output >= 8:
            break
    taken = job.snapshot("job.dlog", force=True)
    print(f" | {taken.state}: {taken.processed} tokens processed, {taken.unprocessed} not | ", end="")

with decodelog.open("sqlite:///there.db") as there:
    there.restore("job.dlog")
    job = there.job(taken.job)
    for piece in job.run():
        if piece.sequence > taken.sequence:
            print(piece.text, end="", flush=True)
    print("\n\nno fault" if job.audit(reexecute=True).ok else "\n\na fault")
