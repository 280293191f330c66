import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Reads lines "Message version hex", lets Apache Kafka's own class read and write the bytes, and
 * says where they do not come back the same. Started by tools/check_against_kafka.py.
 */
public class KafkaOracle {
    static final String[] PLACES = {
        "org.apache.kafka.common.message.%sData",
        "org.apache.kafka.common.message.%s",
        "org.apache.kafka.coordinator.group.generated.%s",
        "org.apache.kafka.coordinator.transaction.generated.%s",
    };

    static Class<?> find(String name) throws ClassNotFoundException {
        for (String place : PLACES) {
            try {
                return Class.forName(String.format(place, name));
            } catch (ClassNotFoundException next) {
                // the message lives in one of the other packages
            }
        }
        throw new ClassNotFoundException(name);
    }

    static String check(String name, short version, byte[] data) {
        try {
            Message message = (Message) find(name).getDeclaredConstructor().newInstance();
            ByteBuffer input = ByteBuffer.wrap(data);
            message.read(new ByteBufferAccessor(input), version);
            if (input.hasRemaining()) {
                return input.remaining() + " bytes left";
            }
            ByteBuffer output = MessageUtil.toByteBufferAccessor(message, version).buffer();
            byte[] again = new byte[output.remaining()];
            output.get(again);
            return Arrays.equals(data, again) ? null : "written as " + HexFormat.of().formatHex(again);
        } catch (Exception error) {
            return error.toString();
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        int same = 0;
        int different = 0;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            byte[] data = HexFormat.of().parseHex(words[2]);
            String why = check(words[0], Short.parseShort(words[1]), data);
            if (why == null) {
                same++;
            } else {
                different++;
                System.out.println(words[0] + " v" + words[1] + ": " + why);
            }
        }
        System.out.println(same + " the same, " + different + " different");
        System.exit(different == 0 ? 0 : 1);
    }
}
