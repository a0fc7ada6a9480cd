"""What the origin answers to each request of the Hub's protocol."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
import urllib.parse
from typing import TYPE_CHECKING

from .faults import Reply
from .repos import DATE, Blob, Commit, Repo

if TYPE_CHECKING:
    from .server import Origin


def json_reply(value, status: int = 200, **headers: str) -> Reply:
    return Reply(
        status,
        {"Content-Type": "application/json", **{n.replace("_", "-"): v for n, v in headers.items()}},
        json.dumps(value).encode(),
    )


def query_of(path: str) -> tuple[list[str], dict[str, str]]:
    """Path segments, each unquoted once, and the query."""
    parsed = urllib.parse.urlsplit(path)
    segments = [urllib.parse.unquote(part) for part in parsed.path.strip("/").split("/")]
    return segments, dict(urllib.parse.parse_qsl(parsed.query, keep_blank_values=True))


class Problem(Exception):
    """Ends a request with an error answer."""

    def __init__(self, status: int, code: str, text: str) -> None:
        self.reply = json_reply({"error": text}, status, X_Error_Code=code, X_Error_Message=text)


def answer(origin: Origin, side: str, method: str, path: str, headers, body: bytes) -> Reply:
    segments, query = query_of(path)
    try:
        if side == "cdn":
            return _cdn(origin, segments, query, headers)
        if segments[0] == "_lfs":  # uploads of LFS objects carry no token, as on the Hub
            return _lfs_put(origin, segments, body)
        if origin.token is not None and headers.get("Authorization") != f"Bearer {origin.token}":
            raise Problem(401, "GatedRepo" if "resolve" in segments else "RepoNotFound", "token needed")
        if segments[0] == "api":
            return _api(origin, method, segments[1:], query, headers, body)
        if segments[0] == "datasets" and len(segments) > 3:
            return _dataset(origin, method, segments[1:], headers, body)
        raise Problem(404, "NotFound", f"no such page: {path}")
    except Problem as problem:
        return problem.reply


def _repo(origin: Origin, owner: str, name: str) -> Repo:
    repo = origin.store.repos.get(f"{owner}/{name}")
    if repo is None:
        raise Problem(404, "RepoNotFound", f"no repository {owner}/{name}")
    return repo


def _commit(repo: Repo, revision: str) -> Commit:
    commit = repo.at(revision)
    if commit is None:
        raise Problem(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return commit


# --- reads ----------------------------------------------------------------------------------------


def _dataset(origin: Origin, method: str, segments: list[str], headers, body: bytes) -> Reply:
    owner, name, action, *rest = segments
    if name.endswith(".git"):
        return _lfs_batch(origin, body)
    if action != "resolve" or len(rest) < 2:
        raise Problem(404, "NotFound", "no such page")
    commit = _commit(_repo(origin, owner, name), rest[0])
    blob = commit.files.get("/".join(rest[1:]))
    if blob is None:
        raise Problem(404, "EntryNotFound", f"no file {'/'.join(rest[1:])}")
    known = {"X-Repo-Commit": commit.sha, "ETag": f'"{blob.etag}"', "Accept-Ranges": "bytes"}
    if blob.sha256:
        known |= {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(blob.size)}
        known |= {"X-Xet-Hash": "f" * 64, "Link": '<http://127.0.0.1:9/xet>; rel="xet-auth"'}
        if origin.cdn:
            expires = time.time() + origin.cdn_ttl
            known["Location"] = f"{origin.cdn_url}/{blob.sha256}?Expires={expires:.2f}&Signature=secret-sig"
            return Reply(302, known, b"")
    return _content(blob.content, known, headers)


def _content(content, known: dict[str, str], headers) -> Reply:
    size = len(content)
    reply = Reply(200, known, content, whole=content)
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("Range") or "")
    if asked is None or asked.groups() == ("", ""):
        return reply
    first, last = asked.groups()
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        return Reply(416, {**known, "Content-Range": f"bytes */{size}"}, b"")
    reply.status, reply.span, reply.body = 206, (start, stop), memoryview(content)[start:stop]
    reply.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return reply


def _cdn(origin: Origin, segments: list[str], query: dict[str, str], headers) -> Reply:
    content = origin.store.objects.get(segments[0])
    if content is None:
        raise Problem(404, "NotFound", "no such object")
    if "Authorization" in headers:
        raise Problem(400, "BadRequest", "only one auth mechanism allowed")
    if float(query.get("Expires", 0)) < time.time():
        raise Problem(403, "Expired", "request has expired")
    return _content(content, {"ETag": f'"{segments[0]}"', "Accept-Ranges": "bytes"}, headers)


# --- the API --------------------------------------------------------------------------------------


def _api(origin: Origin, method: str, segments: list[str], query: dict, headers, body: bytes) -> Reply:
    if segments == ["whoami-v2"]:
        role = {"accessToken": {"displayName": "t", "role": "write"}}
        return json_reply({"type": "user", "name": "tester", "fullname": "T", "orgs": [], "auth": role})
    if segments == ["validate-yaml"]:
        return json_reply({"errors": [], "warnings": []})
    if segments == ["repos", "create"]:
        return _create(origin, json.loads(body))
    if segments[0] != "datasets" or len(segments) < 3:
        raise Problem(404, "NotFound", "no such API")
    repo = _repo(origin, segments[1], segments[2])
    action, rest = (segments[3], segments[4:]) if len(segments) > 3 else ("revision", ["main"])
    if action == "revision":
        blobs = not origin.bare and query.get("blobs", "").lower() in ("true", "1")
        return json_reply(repo.info(_commit(repo, rest[0]), blobs))
    if action == "tree":
        return _tree(origin, repo, rest[0], "/".join(rest[1:]), query)
    if action == "paths-info":
        return _paths_info(_commit(repo, rest[0]), headers, body)
    if action == "refs":
        named = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": s} for n, s in repo.refs.items()]
        return json_reply({"branches": named, "tags": [], "converts": [], "pullRequests": []})
    if action == "commits":
        return _history(repo, _commit(repo, rest[0]))
    if action == "branch" and method == "POST":
        return _branch(repo, rest[0], json.loads(body or b"{}"))
    if action == "preupload":
        return _preupload(origin, repo, rest[0], json.loads(body))
    if action == "commit":
        with repo.lock:
            return _new_commit(origin, repo, rest[0], query, body)
    raise Problem(404, "NotFound", f"no such API: {action}")


def _tree(origin: Origin, repo: Repo, revision: str, folder: str, query: dict[str, str]) -> Reply:
    flags = [query.get(name, "").lower() in ("true", "1") for name in ("recursive", "expand")]
    items = repo.listing(_commit(repo, revision), folder, *flags)
    if items is None:
        raise Problem(404, "EntryNotFound", f"no folder {folder}")
    start = int(query.get("cursor") or 0)
    reply = json_reply(items[start : start + origin.page_size])
    if start + origin.page_size < len(items):
        following = urllib.parse.urlencode({**query, "cursor": start + origin.page_size})
        place = "/".join(urllib.parse.quote(part, safe="") for part in (revision, *folder.split("/")) if part)
        reply.headers["Link"] = f'<{origin.url}/api/datasets/{repo.id}/tree/{place}?{following}>; rel="next"'
    return reply


def _paths_info(commit: Commit, headers, body: bytes) -> Reply:
    if "json" in headers.get("Content-Type", ""):
        paths = json.loads(body)["paths"]
    else:
        paths = urllib.parse.parse_qs(body.decode()).get("paths", [])
    return json_reply([commit.files[path].listing(path) for path in paths if path in commit.files])


def _history(repo: Repo, commit: Commit | None) -> Reply:
    history = []
    while commit is not None:
        author = [{"user": "tester", "avatar": ""}]
        history.append(
            {"id": commit.sha, "title": commit.message, "message": "", "authors": author, "date": DATE}
        )
        commit = repo.commits.get(commit.parent or "")
    return json_reply(history)


# --- uploads --------------------------------------------------------------------------------------


def _create(origin: Origin, asked: dict) -> Reply:
    repo_id = f"{asked.get('organization') or 'tester'}/{asked['name']}"
    value = {"url": f"{origin.url}/datasets/{repo_id}", "name": repo_id, "id": repo_id}
    if repo_id in origin.store.repos:
        return json_reply({"error": "You already created this dataset repo", **value}, 409)
    private = asked.get("visibility") == "private" or bool(asked.get("private"))
    origin.store.repos[repo_id] = Repo(repo_id, private)
    return json_reply(value)


def _branch(repo: Repo, branch: str, asked: dict) -> Reply:
    if branch in repo.refs:
        raise Problem(409, "BranchExists", f"branch {branch} exists")
    repo.refs[branch] = _commit(repo, asked.get("startingPoint") or "main").sha
    return json_reply({})


def _preupload(origin: Origin, repo: Repo, revision: str, asked: dict) -> Reply:
    files = _commit(repo, revision).files
    answers = []
    for file in asked["files"]:
        path, known = file["path"], files.get(file["path"])
        mode = "lfs" if origin.store.is_lfs(path, file.get("size", 0)) else "regular"
        oid = known.etag if known else None
        answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return json_reply({"files": answers})


def _lfs_batch(origin: Origin, body: bytes) -> Reply:
    objects = []
    for item in json.loads(body)["objects"]:
        answer: dict = {"oid": item["oid"], "size": item["size"]}
        if item["oid"] not in origin.store.objects:
            base = f"{origin.url}/_lfs"
            answer["actions"] = {
                "upload": {"href": f"{base}/{item['oid']}", "header": {}},
                "verify": {"href": f"{base}/verify/{item['oid']}", "header": {}},
            }
        objects.append(answer)
    return json_reply({"transfer": "basic", "objects": objects})


def _lfs_put(origin: Origin, segments: list[str], body: bytes) -> Reply:
    if segments[1] == "verify":
        return json_reply({}, 200 if segments[2] in origin.store.objects else 404)
    if hashlib.sha256(body).hexdigest() != segments[1]:
        raise Problem(400, "BadHash", "content does not match its oid")
    origin.store.objects[segments[1]] = body
    return Reply(200)


def _new_commit(origin: Origin, repo: Repo, ref: str, query: dict[str, str], body: bytes) -> Reply:
    base = _commit(repo, ref)
    files = dict(base.files)
    summary = ""
    for line in body.splitlines():
        operation = json.loads(line)
        key, value = operation["key"], operation["value"]
        if key == "header":
            summary = value.get("summary", "")
            if value.get("parentCommit") not in (None, base.sha):
                raise Problem(412, "PreconditionFailed", "A commit has happened since. Please refresh.")
        elif key == "file":
            files[value["path"]] = Blob.of(base64.b64decode(value["content"]), lfs=False)
        elif key == "lfsFile":
            if value["oid"] not in origin.store.objects:
                raise Problem(400, "MissingLfs", f"LFS object {value['oid']} was not uploaded")
            files[value["path"]] = Blob.of(origin.store.objects[value["oid"]], lfs=True)
        elif key == "deletedFile":
            if files.pop(value["path"], None) is None:
                raise Problem(404, "EntryNotFound", f"no file {value['path']}")
        elif key == "deletedFolder":
            prefix = value["path"].rstrip("/") + "/"
            files = {path: blob for path, blob in files.items() if not path.startswith(prefix)}
    answer = {"success": True, "hookOutput": ""}
    target = ref
    if query.get("create_pr") in ("1", "true", "True"):
        repo.pull_requests += 1
        target = f"refs/pr/{repo.pull_requests}"
        repo.refs[target] = base.sha
        answer["pullRequestUrl"] = f"{origin.url}/datasets/{repo.id}/discussions/{repo.pull_requests}"
    sha = repo.commit(target, files, summary)
    return json_reply(
        {**answer, "commitOid": sha, "commitUrl": f"{origin.url}/datasets/{repo.id}/commit/{sha}"}
    )
