// The data blocks of the page: base64 of zlib streams of JSON (page.py writes them). "index" is read at the start, and
// "piece-RUN-PROBLEM" when the problem is opened or its programs are searched.

// The data block with this id, once the browser has read all of it; null in a page that was cut short.
function whenRead(id) {
  return new Promise((resolve) => {
    const observer = new MutationObserver(check);
    function check() {
      const block = byId(id);
      const all = document.readyState !== "loading";
      if (!all && !block?.nextElementSibling) return;
      observer.disconnect();
      document.removeEventListener("DOMContentLoaded", check);
      resolve(block);
    }
    observer.observe(document.body, { childList: true });
    document.addEventListener("DOMContentLoaded", check);
    check();
  });
}

async function decode(id) {
  const block = await whenRead(id);
  if (!block) throw new Error("the data block is missing");
  const characters = atob(block.textContent);
  const bytes = new Uint8Array(characters.length);
  for (let offset = 0; offset < bytes.length; offset++) bytes[offset] = characters.charCodeAt(offset);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function alertDamage(position, error) {
  alertUser(`The data of problem ${index.problems[position].id} cannot be read (${error.message}): the page was cut`
    + " short or changed; make it again.");
}
