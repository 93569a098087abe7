import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.Arrays;

/** Answers each request with a page of so many bytes: Pages.java PORT BYTES */
public class Pages {
    public static void main(String[] words) throws Exception {
        byte[] page = new byte[Integer.parseInt(words[1])];
        Arrays.fill(page, (byte) 'x');
        InetSocketAddress at = new InetSocketAddress("127.0.0.1", Integer.parseInt(words[0]));
        HttpServer server = HttpServer.create(at, 0);
        server.createContext("/", exchange -> {
            exchange.sendResponseHeaders(200, page.length);
            exchange.getResponseBody().write(page);
            exchange.close();
        });
        server.start();
    }
}
