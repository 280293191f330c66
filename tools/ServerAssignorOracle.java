// Prints what the server-side assignors of Apache Kafka (KIP-848) make of groups, one JSON object a
// line: the vectors in tests/group/data/java_server_assignors.jsonl. Run with the jars of
// kafka-group-coordinator, kafka-group-coordinator-api, kafka-clients (4.3.0) and slf4j-api:
// java -cp JARS tools/ServerAssignorOracle.java > that file.
//
// Kafka's result depends on the order of its hash tables. Here members come in the order of range
// (static ones first) and topic ids so small that a hash table holds them in order of name.

import java.util.*;
import java.util.stream.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.*;
import org.apache.kafka.coordinator.group.assignor.*;

public class ServerAssignorOracle {
    static final Random chance = new Random(848);

    record Member(String id, String instance, String rack, Set<Uuid> topics, Map<Uuid, Set<Integer>> owned) {}

    record Spec(LinkedHashMap<String, Member> members) implements GroupSpec {
        public Collection<String> memberIds() { return members.keySet(); }
        public SubscriptionType subscriptionType() {
            return members.values().stream().map(Member::topics).distinct().count() <= 1
                ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        }
        public boolean isPartitionAssigned(Uuid topic, int partition) {
            return members.values().stream().anyMatch(m -> m.owned.getOrDefault(topic, Set.of()).contains(partition));
        }
        public boolean isPartitionAssignable(Uuid topic, int partition) { return true; }
        public MemberSubscription memberSubscription(String id) {
            Member member = members.get(id);
            return new MemberSubscription() {
                public Optional<String> rackId() { return Optional.ofNullable(member.rack); }
                public Optional<String> instanceId() { return Optional.ofNullable(member.instance); }
                public Set<Uuid> subscribedTopicIds() { return member.topics; }
            };
        }
        public MemberAssignment memberAssignment(String id) { return () -> members.get(id).owned; }
    }

    record Topics(List<Integer> sizes) implements SubscribedTopicDescriber {
        public int numPartitions(Uuid topic) { return sizes.get((int) topic.getLeastSignificantBits() - 1); }
        public Set<String> racksForPartition(Uuid topic, int partition) { return Set.of("r" + partition % 3); }
    }

    static Uuid id(int topic) { return new Uuid(0, topic + 1); }

    static String name(Uuid topic) { return "t" + (topic.getLeastSignificantBits() - 1); }

    static String quote(String text) { return text == null ? "null" : "\"" + text + "\""; }

    static String shown(Map<Uuid, Set<Integer>> parts) {
        return new TreeMap<>(parts).entrySet().stream().filter(e -> !e.getValue().isEmpty())
            .map(e -> quote(name(e.getKey())) + ":" + new TreeSet<>(e.getValue()))
            .collect(Collectors.joining(",", "{", "}"));
    }

    static Map<Uuid, Set<Integer>> tidy(Map<Uuid, Set<Integer>> parts) {
        TreeMap<Uuid, Set<Integer>> copy = new TreeMap<>();
        parts.forEach((topic, numbers) -> { if (!numbers.isEmpty()) copy.put(topic, new TreeSet<>(numbers)); });
        return Collections.unmodifiableMap(copy);
    }

    static LinkedHashMap<String, Member> ordered(Collection<Member> members) {
        LinkedHashMap<String, Member> map = new LinkedHashMap<>();
        members.stream().sorted(Comparator.comparing((Member m) -> m.instance == null)
            .thenComparing(m -> m.instance == null ? m.id : m.instance)).forEach(m -> map.put(m.id, m));
        return map;
    }

    static Map<String, MemberAssignment> print(PartitionAssignor assignor, Collection<Member> some, List<Integer> sizes) {
        Spec spec = new Spec(ordered(some));
        Map<String, MemberAssignment> plan = assignor.assign(spec, new Topics(sizes)).members();
        String members = spec.members.values().stream().map(m -> quote(m.id) + ":{\"instance\":" + quote(m.instance)
            + ",\"rack\":" + quote(m.rack) + ",\"topics\":" + m.topics.stream().map(t -> quote(name(t))).toList()
            + ",\"owned\":" + shown(m.owned) + "}").collect(Collectors.joining(",", "{", "}"));
        String given = spec.members.keySet().stream()
            .map(m -> quote(m) + ":" + (plan.containsKey(m) ? shown(plan.get(m).partitions()) : "{}"))
            .collect(Collectors.joining(",", "{", "}"));
        System.out.println("{\"assignor\":" + quote(assignor.name()) + ",\"topics\":" + sizes + ",\"members\":" + members
            + ",\"plan\":" + given + "}");
        return plan;
    }

    static Set<Uuid> subscription(int topics, boolean equal) {
        TreeSet<Uuid> found = new TreeSet<>();
        for (int t = 0; t < topics; t++) if (equal || chance.nextInt(3) > 0) found.add(id(t));
        return found;
    }

    // One group over several rounds: members come and go, topics grow, subscriptions change.
    static void story(PartitionAssignor assignor, int most, int largest) {
        boolean equal = chance.nextInt(3) == 0;
        int topics = 1 + chance.nextInt(5), next = 0;
        List<Integer> sizes = new ArrayList<>();
        for (int t = 0; t < topics; t++) sizes.add(chance.nextInt(4) == 0 ? 1 + chance.nextInt(2) : 1 + chance.nextInt(largest));
        List<Member> members = new ArrayList<>();
        for (int round = 0; round < 4; round++) {
            if (round > 0 && members.size() > 1)
                for (int gone = chance.nextInt(2); gone >= 0 && members.size() > 1; gone--)
                    members.remove(chance.nextInt(members.size()));
            for (int more = round == 0 ? 1 + chance.nextInt(most) : chance.nextInt(3); more > 0; more--) {
                String instance = chance.nextInt(4) == 0 ? "i" + (90 - next) : null;
                members.add(new Member("m" + next++, instance, "r" + chance.nextInt(3), subscription(topics, equal), tidy(Map.of())));
            }
            if (round == 2) sizes.set(0, sizes.get(0) + chance.nextInt(4));
            if (round == 3 && chance.nextBoolean()) {
                Member one = members.get(0);
                members.set(0, new Member(one.id, one.instance, one.rack, subscription(topics, equal), one.owned));
            }
            Map<String, MemberAssignment> plan = print(assignor, members, List.copyOf(sizes));
            members.replaceAll(m -> new Member(m.id, m.instance, m.rack, m.topics,
                plan.containsKey(m.id) ? tidy(plan.get(m.id).partitions()) : tidy(Map.of())));
        }
    }

    public static void main(String[] args) {
        for (int i = 0; i < 70; i++) story(new UniformAssignor(), 6, 9);
        for (int i = 0; i < 8; i++) story(new UniformAssignor(), 14, 40);
        for (int i = 0; i < 12; i++) story(new RangeAssignor(), 6, 9);
    }
}
