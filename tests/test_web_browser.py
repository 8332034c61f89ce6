"""The page in a real browser: what its user sees, and that nothing leaves the machine."""

import base64
import os
import shutil
import time
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from assay.data.images import endings
from assay.index import Index
from assay.index.calibration import TooFew
from serving import FakeIndex, build_index, draw, make_pictures, png, serving, with_settings

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
TOKEN = "a-secret-of-more-than-16-characters"

CARD, NAMES = ".card", ".card .shot"


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    missing = "playwright" if sync_playwright is None else "chromium" if not CHROMIUM else None
    if missing:
        if os.environ.get("ASSAY_TEST_WEB"):
            pytest.fail(f"{missing} is missing, which ASSAY_TEST_WEB asks for")
        pytest.skip(f"{missing} is not installed")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("pictures"), each=4)


@pytest.fixture(scope="module")
def served(pictures, tmp_path_factory):
    folder = build_index(pictures, tmp_path_factory.mktemp("index") / "shapes")
    with serving(lambda: Index.open(folder)) as running:
        yield running


@pytest.fixture(scope="module")
def calibrated(pictures):
    with serving(lambda: FakeIndex(pictures, calibrated=True)) as running:
        yield running


class Watched:
    """A page, what it asked for and what it complained of."""

    def __init__(self, page):
        self.page, self.hosts, self.complaints = page, set(), []
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text))


@pytest.fixture
def open_page(browser):
    """Open pages; fail in the end for a complaint on the console and a request off the machine."""
    watched, allowed = [], []

    def open_page(served, address="/", *, width=1280, scheme="light", wait="#columns details"):
        context = browser.new_context(
            viewport={"width": width, "height": 820}, color_scheme=scheme, reduced_motion="reduce"
        )
        watched.append(Watched(context.new_page()))
        allowed.append(f"127.0.0.1:{served.port}")
        page = watched[-1].page
        page.goto(served.url + address)
        if wait:
            page.wait_for_selector(wait)
        return watched[-1]

    yield open_page
    for one in watched:
        one.page.context.close()
        assert one.hosts - {""} <= set(allowed), one.hosts  # blob: has no host
        assert one.complaints == []


def send_file(page, kind, content, name="query.png"):
    """Drop or paste a file as the browser does it."""
    data = base64.b64encode(content).decode()
    page.evaluate(
        """([kind, data, name]) => {
            const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], name, {type: "image/png"}));
            const options = {bubbles: true, cancelable: true};
            if (kind === "paste") {
                document.body.dispatchEvent(
                    new ClipboardEvent("paste", {...options, clipboardData: transfer}));
                return;
            }
            for (const step of ["dragenter", "dragover", "drop"]) {
                document.querySelector("#drop").dispatchEvent(
                    new DragEvent(step, {...options, dataTransfer: transfer}));
            }
        }""",
        [kind, data, name],
    )


def wait_until(page, condition):
    """Wait for a condition in JavaScript; Playwright's own waiting needs `eval` in the page."""
    deadline = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(30)


def wait_for_matches(page):
    wait_until(page, "document.querySelector('#status').textContent.includes('best first')")
    return page.locator(NAMES).evaluate_all("all => all.map((one) => one.ariaLabel)")


def leave(page):
    """Leave the page before its service ends, of which it may still ask for a thumbnail."""
    page.goto("about:blank")


def ids_of(page):
    return [name.rpartition(", ")[2] for name in wait_for_matches(page)]


# --- finding --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["drop", "paste"])
@pytest.mark.parametrize("colour", ["red", "green", "blue", "gold"])
def test_a_picture_that_is_dropped_or_pasted_finds_its_like(open_page, served, kind, colour):
    page = open_page(served).page
    send_file(page, kind, png(draw(colour, "disc", 33)))
    assert {id_.split("/")[0] for id_ in ids_of(page)[:6]} == {colour}
    shown = page.locator("#picture")
    assert shown.get_attribute("src").startswith("blob:") and shown.is_visible()
    wait_until(
        page,
        "[...document.querySelectorAll('.card img')].slice(0, 4).every((one) => one.naturalWidth)",
    )


def test_a_picture_that_is_chosen_finds_its_like(open_page, served, tmp_path):
    page = open_page(served).page
    (tmp_path / "chosen.png").write_bytes(png(draw("blue", "square", 33)))
    page.set_input_files("#file", tmp_path / "chosen.png")
    assert ids_of(page)[0].startswith("blue/")
    assert page.inner_text("#called") == "chosen.png"


def test_matches_on_the_page_are_those_of_the_interface(open_page, served):
    page, content = open_page(served).page, png(draw("red", "square", 12))
    send_file(page, "drop", content)
    answer = served.search(content, k=24).json()
    assert ids_of(page) == [match["id"] for match in answer["matches"]]
    scores = page.locator(".score").all_inner_texts()
    assert scores == [f"similarity {match['score']:.3f}" for match in answer["matches"]]


def test_a_match_becomes_the_query_and_the_button_back_returns(open_page, served):
    page = open_page(served).page
    send_file(page, "drop", png(draw("red", "disc", 33)))
    first = ids_of(page)
    page.locator(NAMES).nth(3).click()
    wait_until(page, f"document.querySelector('#called').textContent === {first[3]!r}")
    assert first[3] not in ids_of(page)
    page.go_back()
    wait_until(page, "document.querySelector('#called').textContent === 'query.png'")
    assert ids_of(page) == first
    page.go_back()
    page.wait_for_selector("#empty")
    assert page.locator(CARD).count() == 0


def test_the_search_works_by_keyboard_alone(open_page, served):
    page = open_page(served).page
    send_file(page, "paste", png(draw("green", "disc", 33)))
    first = ids_of(page)
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "shot":
            break
    assert page.evaluate("document.activeElement.ariaLabel").endswith(first[0])
    page.keyboard.press("Enter")
    wait_until(page, f"document.querySelector('#called').textContent === {first[0]!r}")
    assert page.evaluate("document.activeElement.id") == "matches"


# --- narrowing ------------------------------------------------------------------------------------


def wait_for_count(page, count):
    wait_until(page, f"document.querySelectorAll('.card').length === {count}")


def test_filters_narrow_the_matches_and_can_be_cleared(open_page, served):
    page = open_page(served).page
    send_file(page, "drop", png(draw("red", "disc", 33)))
    wait_for_count(page, 24)
    page.get_by_role("checkbox", name="blue").check()
    wait_for_count(page, 8)
    assert all(id_.startswith("blue/") for id_ in ids_of(page))
    page.get_by_role("checkbox", name="gold").check()
    wait_for_count(page, 16)
    page.get_by_role("button", name="Clear").click()
    wait_for_count(page, 24)
    assert not page.get_by_role("button", name="Clear").is_visible()


def test_more_matches_follow_until_there_are_none(open_page, served):
    page = open_page(served).page
    page.select_option("#count", "12")
    send_file(page, "drop", png(draw("red", "disc", 33)))
    wait_for_count(page, 12)
    for count in (24, 32):
        page.get_by_role("button", name="Show more").click()
        wait_for_count(page, count)
    assert not page.locator("#more").is_visible()
    found = ids_of(page)
    assert len(set(found)) == 32
    assert page.locator(".rank").all_inner_texts() == [str(rank) for rank in range(1, 33)]


def test_nothing_found_is_said_in_words(open_page, calibrated):
    page = open_page(calibrated).page
    send_file(page, "drop", png(draw("red", "disc", 33)))
    wait_for_matches(page)
    assert "sure" in page.locator(".sure").first.inner_text()
    page.select_option("#precision", "0.99")
    page.get_by_role("checkbox", name="gold").check()
    page.wait_for_selector("#empty:visible")
    said = page.inner_text("#empty")
    assert said.startswith("Nothing found") and page.locator(CARD).count() == 0
    assert page.inner_text("#status") == "Nothing found."


def test_a_single_match_is_counted_as_one(open_page, tmp_path):
    pictures = make_pictures(tmp_path / "pictures", each=1)
    with serving(lambda: FakeIndex(pictures)) as served:
        page = open_page(served).page
        page.get_by_role("checkbox", name="red").check()
        page.locator("summary", has_text="shape").click()
        page.get_by_role("checkbox", name="disc").check()
        send_file(page, "drop", png(draw("red", "disc", 33)))
        wait_for_matches(page)
        assert page.inner_text("#status").startswith("1 match, best first")
        leave(page)


def test_precisions_that_cannot_be_shown_are_disabled_with_the_reason(open_page, pictures):
    index = FakeIndex(pictures, calibrated=True)
    index.unshown = {0.95: TooFew("too few"), 0.99: TooFew("too few")}
    with serving(lambda: index) as served:
        page = open_page(served).page
        options = page.locator("#precision option").evaluate_all(
            "all => all.map((one) => [one.textContent, one.disabled])"
        )
        assert options == [
            ["any", False], ["80%", False], ["90%", False], ["95%", True], ["99%", True],
        ]  # fmt: skip
        assert page.inner_text("#precisionless") == (
            "95%, 99%: this index is calibrated on too few classes for this precision."
        )
        page.select_option("#precision", "0.9")
        send_file(page, "drop", png(draw("red", "disc", 33)))
        expected = served.search(png(draw("red", "disc", 33)), k=24, min_precision=0.9).json()
        assert ids_of(page) == [match["id"] for match in expected["matches"]]
        leave(page)


def test_an_index_without_calibration_offers_no_precision(open_page, served):
    page = open_page(served).page
    assert not page.locator("#sureness").is_visible()
    send_file(page, "drop", png(draw("red", "disc", 33)))
    wait_for_matches(page)
    assert page.locator(".sure").count() == 0


def test_the_colour_of_a_match_says_how_sure_it_is(open_page, calibrated):
    page = open_page(calibrated).page
    send_file(page, "drop", png(draw("red", "disc", 33)))
    wait_for_count(page, 24)
    shares = [
        match["confidence"]
        for match in calibrated.search(png(draw("red", "disc", 33)), k=24).json()["matches"]
    ]
    kinds = page.locator(".sure").evaluate_all("all => all.map((one) => one.className)")
    expected = [
        "sure good" if share >= 0.8 else "sure poor" if share < 0.5 else "sure" for share in shares
    ]
    assert kinds == expected
    page.evaluate(
        """() => document.querySelector("#grid").replaceChildren(
            ...[0.003, 0.494, 0.5, 0.79, 0.8, 0.999].map(sureness))"""
    )
    assert page.locator(".sure").evaluate_all(
        "all => all.map((one) => [one.className, one.textContent])"
    ) == [
        ["sure poor", "under 1% sure"], ["sure poor", "49% sure"], ["sure", "50% sure"],
        ["sure", "79% sure"], ["sure good", "80% sure"], ["sure good", "over 99% sure"],
    ]  # fmt: skip
    colours = page.locator(".sure").evaluate_all(
        "all => all.map((one) => getComputedStyle(one).backgroundColor)"
    )
    assert len({colours[0], colours[2], colours[4]}) == 3


def test_a_long_list_of_filters_shows_that_it_goes_on(open_page, tmp_path):
    pictures = make_pictures(tmp_path / "pictures", each=1)
    index = FakeIndex(pictures)
    words = [(f"word {place:02}", 1) for place in range(24)]
    index.words_of = lambda column, most: words
    with serving(lambda: index) as served:
        page = open_page(served).page
        assert page.get_by_label("Find in colour").get_attribute("placeholder") == "Find among 24…"
        shown = page.evaluate(
            """() => {
                const list = document.querySelector(".list");
                return list.clientHeight / list.firstChild.getBoundingClientRect().height;
            }"""
        )
        assert 0.3 < shown % 1 < 0.7
        leave(page)


def test_the_files_that_can_be_chosen_are_those_that_are_read(open_page, served):
    page = open_page(served).page
    assert set(page.get_attribute("#file", "accept").split(",")) == endings()


# --- trouble --------------------------------------------------------------------------------------


def test_a_file_that_is_no_picture_is_refused_in_words(open_page, served):
    watched = open_page(served)
    send_file(watched.page, "drop", b"<svg onload=alert(1)>", name="<b>x</b>.svg")
    watched.page.wait_for_selector("#alert:visible")
    said = watched.page.inner_text("#alert")
    wait_until(watched.page, "document.querySelector('#picture').hidden")
    assert "<b>x</b>" not in watched.page.inner_html("#alert") and "JPEG" in said
    # The browser itself notes answers that are no success.
    assert all("400 (Bad Request)" in text for text in watched.complaints)
    watched.complaints.clear()
    send_file(watched.page, "drop", png(draw("red", "disc", 33)))
    wait_for_matches(watched.page)
    assert not watched.page.locator("#alert").is_visible()


def test_a_precision_that_so_few_classes_cannot_show_is_refused_in_words(open_page, pictures):
    index = FakeIndex(pictures, calibrated=True)
    with serving(lambda: index) as served:
        watched = open_page(served)
        send_file(watched.page, "drop", png(draw("red", "disc", 33)))
        wait_for_matches(watched.page)
        index.fail = TooFew("0.99 cannot be shown from 9 classes; give at least 344, or less")
        watched.page.select_option("#precision", "0.99")
        watched.page.wait_for_selector("#alert:visible")
        said = watched.page.inner_text("#alert")
        assert said.startswith("This precision cannot be shown with so few classes")
        assert said.rstrip().endswith("give at least 344, or less.")
        assert watched.page.locator(CARD).count() == 0
        assert not watched.page.get_by_role("button", name="Try again").is_visible()
        assert all("400 (Bad Request)" in text for text in watched.complaints)
        watched.complaints.clear()


def test_the_name_of_a_file_stays_as_it_is_in_a_message(open_page, served):
    watched = open_page(served)
    for name in ("text.jpg", "text"):
        send_file(watched.page, "drop", b"no picture", name=name)
        watched.page.wait_for_selector("#alert:visible")
        assert watched.page.inner_text("#error").startswith(f"{name} cannot be read")
        assert watched.page.inner_text("#called") == name
        wait_until(watched.page, "document.querySelector('#picture').hidden")
    assert all("400 (Bad Request)" in text for text in watched.complaints)
    watched.complaints.clear()
    send_file(watched.page, "drop", png(draw("red", "disc", 33)))
    wait_for_matches(watched.page)
    assert watched.page.locator("#picture").is_visible()


def test_a_file_that_is_too_large_is_refused_without_sending_it(open_page, pictures):
    small = png(draw("red", "disc", 33))
    with serving(lambda: FakeIndex(pictures), with_settings(most_bytes=len(small))) as served:
        page = open_page(served).page
        send_file(page, "drop", small, name="small.png")
        first = ids_of(page)
        send_file(page, "drop", bytes(5000), name="large.png")
        page.wait_for_selector("#alert:visible")
        assert "0 MB" in page.inner_text("#alert")
        assert page.inner_text("#called") == "large.png"
        assert not page.locator("#picture").is_visible()
        assert page.locator(CARD).count() == 0 and page.inner_text("#status") == ""
        page.select_option("#count", "12")  # there is nothing to search with
        assert page.locator("#alert").is_visible() and page.locator(CARD).count() == 0
        page.select_option("#count", "24")
        page.go_back()
        assert ids_of(page) == first and page.inner_text("#called") == "small.png"
        assert page.locator("#picture").is_visible() and not page.locator("#alert").is_visible()
        leave(page)


def test_a_service_that_is_gone_is_said_in_words_with_a_button(open_page, pictures):
    with serving(lambda: FakeIndex(pictures)) as short:
        watched = open_page(short)
    send_file(watched.page, "drop", png(draw("red", "disc", 33)))
    watched.page.wait_for_selector("#alert:visible")
    assert "does not answer" in watched.page.inner_text("#alert")
    assert watched.page.get_by_role("button", name="Try again").is_visible()
    assert all("ERR_CONNECTION_REFUSED" in text for text in watched.complaints)
    watched.complaints.clear()


def break_next_answer(page, error):
    """Let the body of the next answer fail with an error while the page reads it."""
    page.evaluate(
        """(name) => {
            const fetched = window.fetch;
            window.fetch = async (...all) => {
                window.fetch = fetched;
                const response = await fetched(...all);
                response.json = () => Promise.reject(new DOMException("broken", name));
                return response;
            };
        }""",
        error,
    )


def test_a_search_that_another_one_cuts_short_does_no_harm(open_page, served):
    page = open_page(served).page
    break_next_answer(page, "AbortError")
    send_file(page, "drop", png(draw("red", "disc", 33)))
    wait_until(page, "!document.querySelector('#matches').ariaBusy")
    assert page.locator(CARD).count() == 0 and not page.locator("#alert").is_visible()
    page.select_option("#count", "12")
    assert len(wait_for_matches(page)) == 12


def test_an_answer_that_is_cut_short_is_said_in_words_with_a_button(open_page, served):
    page = open_page(served).page
    break_next_answer(page, "NetworkError")
    send_file(page, "drop", png(draw("red", "disc", 33)))
    page.wait_for_selector("#alert:visible")
    assert "cut short" in page.inner_text("#alert")
    page.get_by_role("button", name="Try again").click()
    assert ids_of(page)[0].startswith("red/")


def test_the_token_of_an_address_leaves_it_and_keeps_working(open_page, pictures):
    with serving(lambda: FakeIndex(pictures), with_settings(token=TOKEN)) as guarded:
        page = open_page(guarded, f"/?token={TOKEN}").page
        assert TOKEN not in page.url
        send_file(page, "drop", png(draw("red", "disc", 33)))
        assert ids_of(page)[0].startswith("red/")
        page.reload()
        page.wait_for_selector("#columns details")
        assert TOKEN not in page.evaluate("document.cookie")
        leave(page)


def test_a_picture_whose_file_is_gone_is_said_in_words(open_page, tmp_path):
    pictures = make_pictures(tmp_path / "pictures", each=1)
    with serving(lambda: FakeIndex(pictures)) as served:
        watched = open_page(served)
        (pictures / "red" / "disc 0.png").unlink()
        send_file(watched.page, "drop", png(draw("red", "disc", 33)))
        watched.page.wait_for_selector(".none")
        assert "moved or changed" in watched.page.locator(".none").inner_text()
        assert all("410 (Gone)" in text for text in watched.complaints)
        watched.complaints.clear()


# --- looks ----------------------------------------------------------------------------------------

NAMELESS = """() => [...document.querySelectorAll("button, input, select, a, img")]
    .filter((one) => one.checkVisibility() || one.id === "file")
    .filter((one) => !(one.ariaLabel || one.alt || one.innerText || one.labels?.length))
    .map((one) => one.outerHTML)"""


@pytest.fixture
def screenshots(tmp_path):
    folder = Path(os.environ.get("ASSAY_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_its_width_and_every_control_has_a_name(
    open_page, served, calibrated, screenshots, width, scheme
):
    page = open_page(calibrated, width=width, scheme=scheme).page
    page.screenshot(path=screenshots / f"start-{width}-{scheme}.png")
    send_file(page, "drop", png(draw("red", "disc", 33)), name="a-long-name-of-a-photograph.png")
    wait_for_matches(page)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=screenshots / f"matches-{width}-{scheme}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(NAMELESS) == []
    page.goto(f"{calibrated.url}/docs")
    page.screenshot(path=screenshots / f"docs-{width}-{scheme}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    from PIL import Image

    image = Image.open(BytesIO(page.screenshot()))
    bright = image.convert("L").resize((1, 1)).getpixel((0, 0))
    assert (bright > 150) == (scheme == "light")


def test_facts_of_the_index_are_shown(open_page, served):
    page = open_page(served).page
    said = page.inner_text("#facts")
    for words in ("shapes", "32 images", "conv", "exact"):
        assert words in said
