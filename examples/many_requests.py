"""Many requests at a time: kill this program and run it again, and only what has not ended is run."""

import decodelog

questions = ["Name a river.", "Name a mountain.", "Name a city.", "Name a tree."]
requests = [{"custom_id": f"q{n}", "user": text, "max_new_tokens": 12} for n, text in enumerate(questions)]

with decodelog.open("sqlite:///many.db") as log:
    for name, result in log.map("smollm2-135m-instruct", requests, prefix="questions/"):
        print(name, repr(result.text), result.finish_reason)
