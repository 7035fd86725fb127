"""An audit by a third party: export a log, verify it without a database, and see one flipped byte named."""

from pathlib import Path

import decodelog

with decodelog.open("sqlite:///audited.db") as log:
    job = log.submit("smollm2-135m-instruct", user="Name three rivers.", max_new_tokens=16)
    for piece in job.run():
        print(piece.text, end="", flush=True)
    job.export("job.dlog", force=True)

print("\n\nthe file as it is:", "no fault" if decodelog.verify(Path("job.dlog")).ok else "a fault")

data = bytearray(Path("job.dlog").read_bytes())
data[len(data) // 2] ^= 1
Path("flipped.dlog").write_bytes(data)
for fault in decodelog.verify(Path("flipped.dlog")).faults:
    print("with one bit flipped:", fault.kind, "at event", fault.sequence, "-", fault.detail)
