// Answers each request with a page of so many bytes: pages.js PORT BYTES
const [port, bytes] = process.argv.slice(2).map(Number);
const page = Buffer.alloc(bytes, "x");
require("http")
  .createServer((_request, response) => response.end(page))
  .listen(port, "127.0.0.1");
