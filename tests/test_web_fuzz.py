"""Uploads that nobody should send: the service answers each in time, and never with a failure."""

import gzip
import json
import random
import struct
import time
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from assay.data.images import FORMATS
from serving import FakeIndex, draw, make_pictures, png, serving, with_settings

SECONDS = 10
"""Time in which every request has to be answered, on a busy machine."""

WRITTEN = [name for name in FORMATS if name != "HEIF"]


# --- uploads --------------------------------------------------------------------------------------


def picture(chance, format_=None):
    stream = BytesIO()
    colour, shape = chance.choice(["red", "blue"]), chance.choice(["disc", "square"])
    draw(colour, shape, chance.randrange(99)).save(stream, format_ or chance.choice(WRITTEN))
    return stream.getvalue()


def truncated(chance):
    content = picture(chance)
    return content[: chance.randrange(len(content))]


def flipped(chance):
    content = bytearray(picture(chance))
    for _ in range(chance.choice([1, 1, 5, 50])):
        content[chance.randrange(len(content))] = chance.randrange(256)
    return bytes(content)


def flipped_head(chance):
    content = bytearray(picture(chance))
    for _ in range(3):
        content[chance.randrange(min(60, len(content)))] = chance.choice([0, 255, 127, 128])
    return bytes(content)


def spliced(chance):
    first, second = picture(chance), picture(chance)
    return first[: chance.randrange(len(first))] + second[chance.randrange(len(second)) :]


def noise(chance):
    return chance.randbytes(chance.randrange(5000))


def headed_noise(chance):
    heads = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8 ",
             b"II*\0", b"MM\0*", b"P6\n", b"P5 99999 99999 255\n", b"BM",
             b"\0\0\0\x0cjP  \r\n\x87\n",
             b"\0\0\0 ftypavif", b"\0\0\0 ftypheic", b"\xffO\xffQ", b"P7\n"]  # fmt: skip
    return chance.choice(heads) + chance.randbytes(chance.randrange(3000))


def png_chunk(name, content):
    return (
        struct.pack(">I", len(content)) + name + content
        + struct.pack(">I", zlib.crc32(name + content))
    )  # fmt: skip


def png_of(width, height, data, depth=8, colours=2, more=b""):
    head = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + more + png_chunk(b"IDAT", data)
        + png_chunk(b"IEND", b"")
    )  # fmt: skip


ZEROS = zlib.compress(bytes(30_000_000), 9)


def png_bomb(chance):
    """Return a small file that unpacks to more than its header says, or whose header is huge."""
    sides = [(40_000, 40_000), (1, 1), (2**31 - 1, 1), (1, 2**31 - 1), (0, 0), (65_536, 65_536),
             (7_000, 7_000), (100_000, 400), (2**32 - 1, 2**32 - 1)]  # fmt: skip
    width, height = chance.choice(sides)
    text = png_chunk(b"zTXt", b"a\0\0" + ZEROS)
    profile = png_chunk(b"iCCP", b"a\0\0" + ZEROS)
    return png_of(width, height, ZEROS, more=chance.choice([b"", text, profile, text * 20]))


def gif_bomb(chance):
    stream = BytesIO()
    one = Image.new("P", (10, 10))
    one.save(stream, "GIF", save_all=True, append_images=[one] * chance.choice([1, 50]))
    content = bytearray(stream.getvalue())
    content[6:10] = struct.pack("<HH", *chance.choice([(65_535, 65_535), (0, 0), (40_000, 40_000)]))
    place = content.find(b",")
    if chance.random() < 0.5:
        content[place + 5 : place + 9] = struct.pack("<HH", 65_535, 65_535)
    return bytes(content)


def tiff_bomb(chance):
    """Return a TIFF of one strip of 30 MB of zeros, with other sizes in its head."""
    width, height = chance.choice([(40_000, 40_000), (65_000, 1), (10_000, 1_000), (2**31, 2**31)])
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 8),
               (262, 3, 1, 1), (273, 4, 1, 200), (277, 3, 1, chance.choice([1, 3, 60_000])),
               (278, 4, 1, height), (279, 4, 1, len(ZEROS))]  # fmt: skip
    directory = struct.pack("<H", len(entries)) + b"".join(
        struct.pack("<HHII", *entry) for entry in entries
    )
    loop = struct.pack("<I", chance.choice([0, 8]))  # the next picture: none, or itself
    return (b"II*\0\x08\0\0\0" + directory + loop).ljust(200, b"\0") + ZEROS


def webp_bomb(chance):
    frame = struct.pack("<I", 10)[:1] + b"\0\0\0" + b"\xff\xff\xff\xff\xff\xff"
    body = b"WEBPVP8X" + struct.pack("<I", 10) + frame[:10]
    plain = picture(chance, "WEBP")[12:]
    return b"RIFF" + struct.pack("<I", len(body) + len(plain)) + body + plain


def many_frames(chance):
    stream = BytesIO()
    frames = [Image.new("L", (40, 40), shade) for shade in range(0, 250, 10)]
    format_ = chance.choice(["GIF", "PNG", "WEBP", "TIFF"])
    frames[0].save(stream, format_, save_all=True, append_images=frames[1:])
    return stream.getvalue()


def drawing(chance):
    scripts = ["<script>alert(1)</script>", '<image href="file:///etc/passwd"/>',
               '<!DOCTYPE svg [<!ENTITY a SYSTEM "file:///etc/passwd">]>&a;', ""]  # fmt: skip
    head = chance.choice(['<?xml version="1.0"?>', "", "\ufeff", "\n\n"])
    svg = f'{head}<svg xmlns="http://www.w3.org/2000/svg">{chance.choice(scripts)}</svg>'
    return gzip.compress(svg.encode()) if chance.random() < 0.2 else svg.encode()


def program(chance):
    return chance.choice([
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file", b"%PDF-1.7\n",
        b"\x7fELF" + bytes(200), b"PK\x03\x04" + bytes(100), b"#!/bin/sh\n", b"<html></html>", b"",
        b"\x89HDF\r\n\x1a\n" + bytes(100), b"GRIB" + bytes(100), b"SIMPLE  =", gzip.compress(b"a"),
    ])  # fmt: skip


def odd_picture(chance):
    """Return a picture that is valid but unusual."""
    mode = chance.choice(["1", "L", "LA", "P", "RGBA", "I;16", "F", "I", "CMYK", "YCbCr", "LAB"])
    size = chance.choice([(1, 1), (1, 3000), (3000, 1), (7, 5), (2000, 3)])
    format_ = {"F": "TIFF", "I": "TIFF", "CMYK": "JPEG", "YCbCr": "JPEG", "LAB": "TIFF"}
    stream = BytesIO()
    Image.new(mode, size).save(stream, format_.get(mode, "PNG"))
    return stream.getvalue()


def odd_notes(chance):
    exif = Image.Exif()
    exif[0x0112] = chance.choice([0, 5, 6, 9, 77])
    stream = BytesIO()
    if chance.random() < 0.5:
        draw("red", "disc").save(stream, "JPEG", exif=exif)
    else:
        draw("red", "disc").save(stream, "PNG", exif=exif.tobytes() + chance.randbytes(9))
    return stream.getvalue()


CONTENTS = [
    truncated, flipped, flipped_head, spliced, noise, headed_noise, png_bomb, gif_bomb, tiff_bomb,
    webp_bomb, many_frames, drawing, program, odd_picture, odd_notes,
]  # fmt: skip


# --- requests -------------------------------------------------------------------------------------

NAMES = ["a.png", "", "../../../etc/passwd", "C:\\Windows\\x.png", "a" * 3000, "é日本.jpg",
         'a"b.png', "a\\b", "x\u202egnp.exe", "a;b=c.png", "%00.png", "CON", "-rf",
         "\U0001f600.gif", "a.svg", ".", "..", "/", "a\tb.png", "<script>.png"]  # fmt: skip


def upload(chance, content):
    """Return a form as browsers send it."""
    name = chance.choice(NAMES).encode("utf-8", "surrogateescape").replace(b'"', b"%22")
    kind = chance.choice(
        [b"image/png", b"text/html", b"", b"application/octet-stream", b"x/y; z=1"]
    )
    return form(
        [
            (
                b'form-data; name="image"; filename="%s"' % name,
                b"Content-Type: %s\r\n" % kind,
                content,
            ),
            (b'form-data; name="k"', b"", str(chance.choice([1, 5, 200])).encode()),
        ]
    )


def form(parts, boundary=b"xYzZY", end=b"--"):
    body = b"".join(
        b"--%s\r\nContent-Disposition: %s\r\n%s\r\n%s\r\n" % (boundary, head, more, content)
        for head, more, content in parts
    )
    return b"multipart/form-data; boundary=" + boundary, body + b"--" + boundary + end + b"\r\n"


def wrong_form(chance):
    image = b'form-data; name="image"; filename="a.png"'
    content = png(draw("red", "disc"))
    kind, body = form([(image, b"", content)])
    return chance.choice([
        lambda: (b"multipart/form-data", body),
        lambda: (b"multipart/form-data; boundary=other", body),
        lambda: (b"multipart/form-data; boundary=" + b"x" * 500, body),
        lambda: (b'multipart/form-data; boundary=""', body),
        lambda: (b"multipart/form-data; boundary=\xff\xfe", body),
        lambda: (kind, body[: chance.randrange(len(body))]),
        lambda: (kind, body + chance.randbytes(50)),
        lambda: (kind, b""),
        lambda: (kind, b"\r\n" * 20_000),
        lambda: (kind, b"--xYzZY" * 5_000),
        lambda: (kind, b"--xYzZY\r\n" * 5_000),
        lambda: (kind, (b"--xYzZY\r\n" + b"A: b\r\n" * 5_000)),
        lambda: (kind, b"--xYzZY\r\n" + b"A" * 100_000 + b": b\r\n\r\n"),
        lambda: form([(image, b"", content)] * chance.choice([2, 400])),
        lambda: form([(b'form-data; name="where"', b"", b"colour=red")] * 5_000),
        lambda: form([(b'form-data; name="f%d"' % number, b"", b"1") for number in range(3_000)]),
        lambda: form([(b"form-data", b"", content)]),
        lambda: form([(b"", b"", content)]),
        lambda: form([(b'form-data; name="image"', b"", content)]),
        lambda: form([(b'form-data; name="\xff"; filename="\xff"', b"", content)]),
        lambda: form([(b"form-data; name*=utf-8''image; filename*=utf-8''%ff%fe", b"", content)]),
        lambda: form([(image, b"Content-Transfer-Encoding: base64\r\n", content)]),
        lambda: form([(image, b"Content-Transfer-Encoding: quoted-printable\r\n", content)]),
        lambda: form([(image, b"Content-Transfer-Encoding: \xff\r\n", content)]),
        lambda: form([(image, b"", content)], end=b""),
        lambda: form([(image, b"", b"\r\n--xYzZ" * 5_000)]),
        lambda: form([(image, b"", b"\r" * 500_000)]),
        lambda: form([(image, b"", b"\r\n-" * 100_000)]),
        lambda: (b"application/x-www-form-urlencoded", b"id=%ff&k=1"),
        lambda: (b"application/x-www-form-urlencoded", b"&".join([b"where=a%3Db"] * 5_000)),
        lambda: (b"application/x-www-form-urlencoded", content),
        lambda: (b"application/json", chance.randbytes(100)),
        lambda: (b"application/json; charset=utf-16", json.dumps({"id": "a"}).encode("utf-16")),
        lambda: (b"application/json", b"[" * 100_000),
        lambda: (b"application/json", b'{"id":' * 10_000),
        lambda: (b"application/json", b'{"k":' + b"9" * 100_000 + b"}"),
        lambda: (b"application/json", json.dumps({"id": chance.choice(NAMES)}).encode()),
        lambda: (b"", body),
        lambda: (b"multipart/mixed; boundary=xYzZY", body),
        lambda: (bytes(byte for byte in chance.randbytes(20) if byte > 31), body),
    ])()  # fmt: skip


def request(number):
    """Return the type and the body of request `number`."""
    chance = random.Random(number)
    if number % 4 == 3:
        return wrong_form(chance)
    return upload(chance, CONTENTS[number % len(CONTENTS)](chance))


# --- tests ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    pictures = make_pictures(tmp_path_factory.mktemp("pictures"))
    with serving(lambda: FakeIndex(pictures), with_settings(queue=1000)) as running:
        yield running


def send(served, number):
    kind, body = request(number)
    started = time.monotonic()
    headers = [(b"content-type", kind)] if kind else []
    answer = served.client.post("/api/search", content=body, headers=headers)
    seconds = time.monotonic() - started
    said = f"request {number}: {answer.status_code} {answer.text[:300]}"
    assert answer.status_code in (200, 400, 413, 404, 415), said
    assert seconds < SECONDS, f"request {number} took {seconds:.1f} s"
    if answer.status_code != 200:
        assert set(answer.json()) == {"error", "remedy"}, said
        assert "Traceback" not in answer.text and "/home/" not in answer.text
    return answer.status_code


def check_well(served):
    """Raise unless the service works as before: nothing waits, nothing is held."""
    answer = served.client.post("/api/search", files={"image": ("a.png", png(draw("red", "disc")))})
    assert answer.json()["matches"][0]["id"].startswith("red/")
    service = served.service
    assert (service.searches.taken, service.uploads.held) == (0, 0)


def test_a_bad_upload_is_never_a_failure(served):
    statuses = [send(served, number) for number in range(150)]
    check_well(served)
    assert {200, 400, 413} <= set(statuses)


@pytest.mark.slow
def test_a_thousand_bad_uploads_are_never_a_failure(served):
    before = served.service.metrics
    statuses = [send(served, number) for number in range(1000)]
    check_well(served)
    print({status: statuses.count(status) for status in sorted(set(statuses))})
    assert before.text({}).count('status="5') == 0


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: content.__name__)
def test_every_kind_of_upload_is_among_the_first(content):
    kinds = {CONTENTS[number % len(CONTENTS)] for number in range(150) if number % 4 != 3}
    assert content in kinds


def test_a_bomb_takes_no_memory(served):
    """A head of 40,000 x 40,000 pixels would be 4.8 GB of them."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    content = png_of(40_000, 40_000, ZEROS)
    for _ in range(3):
        answer = served.client.post("/api/search", files={"image": ("a.png", content)})
        assert answer.status_code == 413
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_uploads_with_names_of_any_kind_are_searched(served):
    content = png(draw("blue", "disc"))
    for name in NAMES:
        quoted = name.encode().replace(b'"', b"%22").replace(b"\t", b"")
        kind, body = form([(b'form-data; name="image"; filename="%s"' % quoted, b"", content)])
        answer = served.client.post("/api/search", content=body, headers=[(b"content-type", kind)])
        assert answer.status_code == 200, (name, answer.text)
        assert answer.json()["matches"][0]["id"].startswith("blue/")
        assert len(answer.json()["query"]) <= 80 and answer.json()["query"].isprintable()


def test_the_request_of_a_number_is_always_the_same():
    assert request(5) == request(5) != request(6)
    assert np.unique([len(request(number)[1]) for number in range(60)]).size > 30
