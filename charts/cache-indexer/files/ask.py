"""Asks the service at $URL about two addresses and checks that the answer is one to that question."""

import json
import os
import urllib.request

candidates = ["192.0.2.1", "192.0.2.2"]
prompt = {"token_ids": list(range(256)), "cache_salt": "", "block_size": 128}
body = json.dumps({"server_ip": candidates, "body": prompt}).encode()
request = urllib.request.Request(os.environ["URL"], body, {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=10) as response:
    answer = json.load(response)
print(json.dumps(answer))
scores = answer["server_score_list"]
assert answer["status"] == 0, answer
assert [score["server_ip"] for score in scores] == candidates, answer
assert all(0 <= score[f"{tier}_hit_ratio"] <= 1 for score in scores for tier in ("l1", "l3")), answer
