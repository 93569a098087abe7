import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;

/** An echo server, a thread for each connection; ends when its standard input does. Argument: port. */
public class Echo {
    public static void main(String[] arguments) throws Exception {
        ServerSocket listener = new ServerSocket(Integer.parseInt(arguments[0]), 50, InetAddress.getByName("127.0.0.1"));
        Thread acceptor = new Thread(() -> accept(listener));
        acceptor.setDaemon(true);
        acceptor.start();
        while (System.in.read() >= 0) {
        }
        System.exit(0);
    }

    private static void accept(ServerSocket listener) {
        try {
            while (true) {
                Socket stream = listener.accept();
                new Thread(() -> echo(stream)).start();
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    private static void echo(Socket stream) {
        try (InputStream in = stream.getInputStream(); OutputStream out = stream.getOutputStream()) {
            byte[] buffer = new byte[65536];
            for (int got; (got = in.read(buffer)) >= 0; ) {
                out.write(buffer, 0, got);
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
    }
}
