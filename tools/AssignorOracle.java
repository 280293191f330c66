// Prints what Apache Kafka's own Java client makes of groups and user data, one JSON object a line:
// the vectors in tests/group/data/java_assignors.jsonl. Run with the jars of
// kafka-clients (4.3.0) and slf4j-api: java -cp JARS tools/AssignorOracle.java > that file.

import java.nio.ByteBuffer;
import java.util.*;
import java.util.stream.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.*;

public class AssignorOracle {
    static final Random chance = new Random(20);

    static String quote(String text) { return text == null ? "null" : "\"" + text + "\""; }

    static String hex(ByteBuffer buffer) {
        if (buffer == null) return "null";
        StringBuilder out = new StringBuilder();
        ByteBuffer copy = buffer.duplicate();
        while (copy.hasRemaining()) out.append(String.format("%02x", copy.get()));
        return quote(out.toString());
    }

    static String parts(Collection<TopicPartition> partitions) {
        TreeMap<String, TreeSet<Integer>> byTopic = new TreeMap<>();
        for (TopicPartition each : partitions)
            byTopic.computeIfAbsent(each.topic(), t -> new TreeSet<>()).add(each.partition());
        return byTopic.entrySet().stream()
            .map(e -> quote(e.getKey()) + ":" + e.getValue())
            .collect(Collectors.joining(",", "{", "}"));
    }

    static List<TopicPartition> some(String... names) {
        List<TopicPartition> found = new ArrayList<>();
        for (String name : names) {
            int at = name.lastIndexOf('-');
            found.add(new TopicPartition(name.substring(0, at), Integer.parseInt(name.substring(at + 1))));
        }
        return found;
    }

    static void subscription(List<String> topics, byte[] data, List<TopicPartition> owned,
                             int generation, String rack, int version) {
        ByteBuffer user = data == null ? null : ByteBuffer.wrap(data);
        Subscription made = new Subscription(topics, user, owned, generation, Optional.ofNullable(rack));
        System.out.println("{\"kind\":\"subscription\",\"topics\":" + topics.stream().map(AssignorOracle::quote).toList()
            + ",\"user_data\":" + hex(user) + ",\"owned\":" + parts(owned) + ",\"generation\":" + generation
            + ",\"rack\":" + quote(rack) + ",\"version\":" + version
            + ",\"bytes\":" + hex(ConsumerProtocol.serializeSubscription(made, (short) version)) + "}");
    }

    static void assignment(List<TopicPartition> owned, byte[] data) {
        ByteBuffer user = data == null ? null : ByteBuffer.wrap(data);
        System.out.println("{\"kind\":\"assignment\",\"owned\":" + parts(owned) + ",\"user_data\":" + hex(user)
            + ",\"bytes\":" + hex(ConsumerProtocol.serializeAssignment(new Assignment(owned, user))) + "}");
    }

    static ByteBuffer userData(ConsumerPartitionAssignor assignor, List<TopicPartition> owned, int generation) {
        assignor.onAssignment(new Assignment(owned), new ConsumerGroupMetadata("g", generation, "m", Optional.empty()));
        return assignor.subscriptionUserData(Set.of("t"));
    }

    static void data(ConsumerPartitionAssignor assignor, List<TopicPartition> owned, int generation) {
        System.out.println("{\"kind\":\"user_data\",\"assignor\":" + quote(assignor.name()) + ",\"owned\":" + parts(owned)
            + ",\"generation\":" + generation + ",\"bytes\":" + hex(userData(assignor, owned, generation)) + "}");
    }

    static void group(ConsumerPartitionAssignor assignor, boolean racks, boolean claims) {
        int many = 1 + chance.nextInt(5);
        Node[] nodes = new Node[3];
        for (int i = 0; i < 3; i++) nodes[i] = new Node(i, "h", 1, racks ? "r" + i : null);
        List<PartitionInfo> infos = new ArrayList<>();
        TreeMap<String, List<Node[]>> topics = new TreeMap<>();
        boolean spread = chance.nextBoolean();
        for (int t = 0; t < 1 + chance.nextInt(4); t++) {
            int size = 1 + chance.nextInt(8);
            for (int p = 0; p < size; p++) {
                Node a = nodes[chance.nextInt(3)], b = nodes[chance.nextInt(3)];
                Node[] replicas = a == b || !spread ? new Node[] {a} : new Node[] {a, b};
                infos.add(new PartitionInfo("t" + t, p, a, replicas, replicas));
                topics.computeIfAbsent("t" + t, k -> new ArrayList<>()).add(replicas);
            }
        }
        Map<String, Subscription> members = new TreeMap<>();
        List<TopicPartition> free = infos.stream().map(i -> new TopicPartition(i.topic(), i.partition()))
            .collect(Collectors.toCollection(ArrayList::new));
        Collections.shuffle(free, chance);
        boolean equal = chance.nextBoolean();
        StringBuilder text = new StringBuilder();
        for (int m = 0; m < many; m++) {
            List<String> names = topics.keySet().stream().filter(t -> equal || chance.nextInt(3) > 0).toList();
            String rack = racks && chance.nextInt(5) > 0 ? "r" + chance.nextInt(3) : null;
            String instance = chance.nextInt(4) == 0 ? "i" + (9 - m) : null;
            ByteBuffer user = null;
            List<TopicPartition> owned = new ArrayList<>();
            if (claims && chance.nextInt(4) > 0) {
                int wanted = chance.nextInt(8);
                for (Iterator<TopicPartition> i = free.iterator(); i.hasNext() && wanted > 0; wanted--) {
                    TopicPartition next = i.next();
                    if (names.contains(next.topic())) { owned.add(next); i.remove(); }
                }
                user = userData(new StickyAssignor(), owned, 7);
            }
            Subscription made = new Subscription(names, user, List.of(), -1, Optional.ofNullable(rack));
            made.setGroupInstanceId(Optional.ofNullable(instance));
            members.put("m" + m, made);
            text.append(m > 0 ? "," : "").append(quote("m" + m)).append(":{\"topics\":")
                .append(names.stream().map(AssignorOracle::quote).toList()).append(",\"rack\":").append(quote(rack))
                .append(",\"instance\":").append(quote(instance)).append(",\"owned\":").append(parts(owned))
                .append(",\"user_data\":").append(hex(user)).append("}");
        }
        Cluster cluster = new Cluster("c", Arrays.asList(nodes), infos, Set.of(), Set.of());
        Map<String, Assignment> plan = assignor.assign(cluster, new GroupSubscription(members)).groupAssignment();
        String shownTopics = topics.entrySet().stream().map(e -> quote(e.getKey()) + ":" + e.getValue().stream()
            .map(r -> Arrays.stream(r).map(n -> quote(n.rack())).distinct().toList().toString()).toList())
            .collect(Collectors.joining(",", "{", "}"));
        String shownPlan = new TreeMap<>(plan).entrySet().stream()
            .map(e -> quote(e.getKey()) + ":" + parts(e.getValue().partitions())).collect(Collectors.joining(",", "{", "}"));
        System.out.println("{\"kind\":\"group\",\"assignor\":" + quote(assignor.name()) + ",\"members\":{" + text
            + "},\"topics\":" + shownTopics + ",\"plan\":" + shownPlan + "}");
    }

    public static void main(String[] args) {
        byte[] bytes = {0, 1, -1};
        for (int version = 0; version <= 3; version++) {
            subscription(List.of("a", "topic.b"), bytes, some("a-0", "a-2", "topic.b-7"), 5, "rack-1", version);
            subscription(List.of(), null, List.of(), -1, null, version);
        }
        assignment(some("a-0", "a-1", "ü-4"), null);
        assignment(List.of(), bytes);
        data(new StickyAssignor(), some("a-0", "a-3"), 12);
        data(new StickyAssignor(), List.of(), 1);
        data(new CooperativeStickyAssignor(), some("a-0"), 12);
        System.out.println("{\"kind\":\"user_data\",\"assignor\":\"cooperative-sticky\",\"owned\":{},\"generation\":-1,\"bytes\":"
            + hex(new CooperativeStickyAssignor().subscriptionUserData(Set.of("t"))) + "}");
        for (int i = 0; i < 60; i++) group(new RangeAssignor(), false, false);
        for (int i = 0; i < 120; i++) group(new RangeAssignor(), true, false);
        for (int i = 0; i < 80; i++) group(new RoundRobinAssignor(), false, false);
        for (int i = 0; i < 150; i++) group(new StickyAssignor(), false, true);
        for (int i = 0; i < 200; i++) group(new StickyAssignor(), true, true);
        for (int i = 0; i < 60; i++) group(new CooperativeStickyAssignor(), true, false);
    }
}
