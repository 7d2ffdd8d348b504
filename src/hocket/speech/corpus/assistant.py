"""What people say to a voice assistant: alarms, dates, times, money, names, places, numbers.

About a thousand words. The grammar was written for this project; the names of people and places
refer to nobody in particular.
"""

from __future__ import annotations

from typing import Final

from hocket.speech.corpus.grammar import Grammar

GRAMMAR: Final = Grammar.read(
    """
SENTENCE = ALARM | ALARM | ALARM | TIMER | TIMER | REMINDER | REMINDER | REMINDER | CALENDAR |
    CALENDAR | CALENDAR | CALL | CALL | MESSAGE | MESSAGE | WEATHER | WEATHER | WEATHER | ROUTE |
    ROUTE | ROUTE | MUSIC | MUSIC | MUSIC | HOME | HOME | HOME | SHOPPING | SHOPPING | MONEY | MONEY
    | MONEY | TRAVEL | TRAVEL | TRAVEL | SUMS | SUMS | CONVERT | CONVERT | FACTS | FACTS | NEWS |
    EATING | EATING | TRANSLATE | VOLUME | SMALLTALK

ALARM = [please] set an alarm for TIME [DAY] | wake me [up] at TIME [DAY] | cancel my TIME alarm |
    move my alarm from TIME to TIME | turn off the alarm [for TIME] | is there an alarm for DAY |
    set alarms for TIME and TIME | wake me up every WEEKDAY at TIME | snooze for MINUTES
TIMER = set a timer for DURATION | start a DURATION timer [for the FOOD] | how long is left on the
    FOOD timer | add MINUTES to the timer | cancel the FOOD timer | stop the timer
REMINDER = remind me to TASK DAY | remind me to TASK at TIME | remind me DAY at TIME to TASK |
    remind NAME to TASK | don't let me forget to TASK [DAY] | what are my reminders for DAY | delete
    the reminder to TASK | every WEEKDAY remind me to TASK
CALENDAR = schedule a MEETING with NAME on DATE [at TIME] | what's on my calendar DAY | move my
    MEETING with NAME to DATE | cancel the MEETING on DATE | when is my next MEETING | add NAME
    SURNAME to the MEETING at TIME | book a MEETING for DURATION on WEEKDAY | am i free on DATE at
    TIME | when is OWNER birthday | put a MEETING in my calendar for DATE
CALL = call NAME [SURNAME] | call NAME at work | [please] ring my RELATIVE | call PHONE | redial the
    last number | video call NAME and NAME | dial extension DIGIT DIGIT DIGIT DIGIT | hang up | call
    the nearest SHOP
MESSAGE = text NAME that i'm LATENESS | tell NAME SURNAME i will be there at TIME | send a message
    to my RELATIVE saying SAYING | read my messages from NAME | email NAME SURNAME about the MEETING
    | reply SAYING | send NAME the photos from PLACE
WEATHER = what's the weather like in CITY [DAY] | will it WEATHERVERB in CITY DAY | how WARM is it
    in CITY | do i need an umbrella DAY | what will the temperature be in CITY at TIME | is it going
    to be WARM DAY | when does the sun SUN in CITY | how strong is the wind in CITY
ROUTE = how far is it to CITY | take me to NUMBER STREET | [please] find the fastest route from CITY
    to CITY | navigate to the nearest SHOP | how is the traffic on STREET | directions to the
    STATION in CITY | avoid the motorway and take me to CITY | where is the closest SHOP | how long
    does it take to get to CITY | add a stop at the SHOP on STREET
MUSIC = play [some] GENRE music | play GENRE in the ROOM | play the ALBUM album by NAME SURNAME |
    skip this song | what song is this | play my ADJECTIVE playlist | add this song to my ADJECTIVE
    playlist | play the radio | play something ADJECTIVE with a INSTRUMENT | shuffle songs from the
    YEARS | repeat track NUMBER
HOME = turn on the THING in the ROOM | turn off the THING | switch SWITCH the ROOM THING | set the
    ROOM lights to COLOUR | dim the ROOM lights to NUMBER percent | set the THERMOSTAT to DEGREES
    degrees | lock the ENTRANCE door | is the ENTRANCE door locked | start the APPLIANCE at TIME |
    close the blinds in the ROOM | show me the ENTRANCE camera | what's the temperature in the ROOM
    | turn everything off at TIME
SHOPPING = add FOOD to my shopping list | add FOOD FOOD and FOOD to the list | remove FOOD from the
    list | order NUMBER COUNTABLE | buy AMOUNT FOOD | how much are COUNTABLE at the SHOP | what's on
    my shopping list | do we need more FOOD | find a cheap APPLIANCE
MONEY = send PRICE to NAME [SURNAME] | how much did i spend on SPENDING in MONTH | what's my balance
    | transfer PRICE from savings to my current account | pay my SPENDING bill | NAME owes me PRICE
    | split PRICE between NUMBER people | what is PRICE plus NUMBER percent | how much is PRICE in
    CURRENCY | ask NAME for PRICE | did NAME SURNAME pay me
TRAVEL = book a TRANSPORT from CITY to CITY on DATE | when does the next TRANSPORT leave for CITY |
    find a hotel in CITY for NUMBER nights | how much is a TRANSPORT to CITY on DATE | is my
    TRANSPORT on time | order a taxi to the STATION at TIME | what gate does flight FLIGHT leave
    from | show me cheap flights to COUNTRY | reserve NUMBER seats on the TIME TRANSPORT | do i need
    a visa for COUNTRY
SUMS = what is NUMBER plus NUMBER | what is NUMBER minus NUMBER | what is NUMBER times DIGIT |
    divide BIG by DIGIT | what is NUMBER percent of BIG | what's the square root of NUMBER | how
    much is BIG plus BIG | round BIG to the nearest hundred
CONVERT = how many UNITS are in NUMBER UNITS | convert NUMBER UNITS to UNITS | convert PRICE to
    CURRENCY | how much is NUMBER CURRENCY in CURRENCY | what time is it in CITY | how many days
    until DATE | what day is DATE | what is DEGREES degrees in fahrenheit
FACTS = how tall is NAME SURNAME | who was born on DATE | what is the capital of COUNTRY | how many
    people live in CITY | when was the PLACE in CITY built | how old is the PLACE in CITY | what
    sound does a ANIMAL make | how fast can a ANIMAL run | how much does a ANIMAL weigh | what do
    they speak in COUNTRY | spell WORD | define WORD | who invented the APPLIANCE | tell me about
    the ANIMAL
NEWS = what's in the news [from COUNTRY] | who won the SPORT [in CITY] | what was the score in the
    SPORT DAY | when does CITY play CITY | when is the next SPORT match | read me the headlines
    about SUBJECT | what's new in SUBJECT
EATING = book a table for DIGIT at the CUISINE restaurant [at TIME] | find a CUISINE restaurant near
    STREET | how do i cook FOOD | find a recipe with FOOD and FOOD | how long should i boil FOOD |
    order DIGIT pizzas with FOOD | how many calories are in FOOD | is the CUISINE place on STREET
    still open
TRANSLATE = how do you say WORD in LANGUAGE | translate WORD to LANGUAGE | what does WORD mean in
    LANGUAGE | say SAYING in LANGUAGE
VOLUME = volume [to] DIGIT | turn it up | turn it down | mute the THING | set the volume to NUMBER
    percent | louder | quieter | pause | resume | stop
SMALLTALK = tell me a joke [about a ANIMAL] | good GREETING | thank you | never mind | what can you
    do | yes please | no thanks | sing me a song | how are you DAYPART | flip a coin | roll a dice |
    what's your name

TIME = HOUR o'clock | HOUR o'clock | HOUR thirty | HOUR fifteen | HOUR forty five | HOUR twenty |
    HOUR fifty | HOUR TEEN | half past HOUR | quarter past HOUR | quarter to HOUR | MINUTE past HOUR
    | MINUTE to HOUR | HOUR in the DAYPART | HOUR in the DAYPART | noon | midnight
HOUR = one | two | three | four | five | six | seven | eight | nine | ten | eleven | twelve
MINUTE = five | ten | twenty | twenty five
DAYPART = morning | afternoon | evening
DAY = today | tomorrow | tomorrow | tonight | this DAYPART | tomorrow DAYPART | on WEEKDAY | on
    WEEKDAY | next WEEKDAY | on DATE | this weekend | next week
WEEKDAY = monday | tuesday | wednesday | thursday | friday | saturday | sunday
MONTH = january | february | march | april | may | june | july | august | september | october |
    november | december
DATE = MONTH ORDINAL | the ORDINAL of MONTH | MONTH the ORDINAL | WEEKDAY the ORDINAL
ORDINAL = first | second | third | fourth | fifth | sixth | seventh | eighth | ninth | tenth |
    eleventh | twelfth | thirteenth | fourteenth | fifteenth | sixteenth | seventeenth | eighteenth
    | nineteenth | twentieth | twenty first | twenty second | twenty third | twenty fourth | twenty
    fifth | twenty sixth | twenty seventh | twenty eighth | twenty ninth | thirtieth | thirty first
YEARS = sixties | seventies | eighties | nineties | year nineteen TENS DIGIT | year twenty TEEN
DURATION = MINUTES | MINUTES | an hour | an hour and a half | half an hour | DIGIT hours | DIGIT
    hours and MINUTES | TENS seconds
MINUTES = DIGIT minutes | TEEN minutes | TENS minutes | TENS DIGIT minutes

DIGIT = one | two | three | four | five | six | seven | eight | nine
SPOKEN = zero | oh | DIGIT | DIGIT | DIGIT | DIGIT | DIGIT | DIGIT | DIGIT
TEEN = ten | eleven | twelve | thirteen | fourteen | fifteen | sixteen | seventeen | eighteen |
    nineteen
TENS = twenty | thirty | forty | fifty | sixty | seventy | eighty | ninety
NUMBER = DIGIT | TEEN | TENS | TENS DIGIT | TENS DIGIT
BIG = DIGIT hundred | a hundred and TENS DIGIT | DIGIT hundred and TENS | DIGIT hundred and TENS
    DIGIT | DIGIT thousand | DIGIT thousand DIGIT hundred | TENS thousand | DIGIT million
PHONE = SPOKEN SPOKEN SPOKEN SPOKEN SPOKEN SPOKEN SPOKEN | double DIGIT SPOKEN SPOKEN DIGIT double
    DIGIT
FLIGHT = CARRIER SPOKEN SPOKEN SPOKEN | CARRIER DIGIT SPOKEN SPOKEN SPOKEN
CARRIER = alpha | bravo | delta | echo | foxtrot | golf | hotel | kilo | lima | oscar | papa | romeo
    | sierra | tango | victor | whiskey | zulu
DEGREES = TEEN | TEEN | twenty | twenty DIGIT
PRICE = NUMBER dollars | NUMBER pounds | NUMBER euros | DIGIT hundred dollars | BIG euros | NUMBER
    dollars and TENS cents | NUMBER pounds TENS | TENS pence | DIGIT dollars fifty
CURRENCY = dollars | pounds | euros | yen | francs | rupees | pesos | krona
AMOUNT = a kilo of | a bottle of | a bag of | DIGIT packets of | half a pound of | a box of | a jar
    of | some
UNITS = metres | miles | kilometres | inches | feet | yards | litres | gallons | pints | cups |
    spoons | grams | kilos | pounds | ounces | tons | hours | minutes | seconds | days | weeks |
    acres

NAME = alice | amanda | amy | andrew | angela | anna | anthony | arthur | barbara | benjamin | betty
    | brian | carol | caroline | catherine | charles | charlotte | christine | christopher | claire
    | daniel | david | deborah | dennis | diana | donald | dorothy | douglas | edward | eleanor |
    elizabeth | emily | emma | eric | ethan | fiona | florence | frances | frank | frederick | gary
    | george | gloria | grace | gregory | hannah | harold | harry | heather | helen | henry | hugo |
    isaac | isabel | jack | jacob | james | janet | jason | jennifer | jeremy | jessica | joan |
    john | jonathan | joseph | joshua | judith | julia | justin | karen | katie | keith | kelly |
    kenneth | kevin | larry | laura | lawrence | leo | lily | linda | lisa | louise | lucy | luke |
    margaret | maria | marie | mark | martha | martin | mary | matthew | megan | melissa | michael |
    michelle | nancy | nathan | nicholas | nicole | nina | oliver | olivia | pamela | patricia |
    patrick | paul | peter | philip | rachel | ralph | raymond | rebecca | richard | robert | roger
    | ronald | rose | roy | russell | ruth | ryan | samantha | samuel | sandra | sarah | scott |
    sean | sharon | simon | sophie | stephen | steven | susan | teresa | theodore | thomas | timothy
    | tom | valerie | victoria | vincent | virginia | walter | wendy | william | zoe
SURNAME = adams | anderson | bailey | baker | barnes | bell | bennett | brooks | brown | butler |
    campbell | carter | clark | collins | cook | cooper | cox | davis | edwards | evans | fisher |
    fletcher | foster | graham | gray | green | griffin | hall | hamilton | harris | hayes |
    henderson | hill | hughes | jackson | jenkins | johnson | jones | kennedy | king | lewis |
    marshall | miller | mitchell | moore | morgan | morris | murphy | murray | nelson | parker |
    patterson | perry | phillips | powell | price | reynolds | richardson | roberts | robinson |
    rogers | russell | sanders | shaw | simmons | smith | spencer | stewart | sullivan | taylor |
    thompson | turner | walker | wallace | ward | watson | webster | west | white | williams |
    wilson | wood | wright | young
OWNER = alice's | brian's | daniel's | emma's | george's | hannah's | john's | laura's | maria's |
    michael's | peter's | rachel's | susan's | tom's
RELATIVE = mother | father | mom | dad | sister | brother | wife | husband | daughter | son | uncle
    | aunt | grandmother | grandfather | cousin | boss | doctor | dentist | neighbour | landlord
CITY = amsterdam | athens | atlanta | auckland | baltimore | bangkok | barcelona | belfast | berlin
    | birmingham | boston | brisbane | bristol | brussels | budapest | buffalo | cairo | cambridge |
    canberra | cardiff | charlotte | chicago | cincinnati | cleveland | cologne | copenhagen |
    dallas | delhi | denver | detroit | dublin | edinburgh | florence | frankfurt | geneva | glasgow
    | hamburg | helsinki | houston | indianapolis | istanbul | jakarta | jerusalem | johannesburg |
    kansas city | lagos | las vegas | leeds | lisbon | liverpool | london | los angeles | madrid |
    manchester | manila | melbourne | memphis | miami | milan | milwaukee | minneapolis | montreal |
    moscow | mumbai | munich | nairobi | naples | nashville | new orleans | new york | newcastle |
    norwich | nottingham | oakland | orlando | oslo | ottawa | oxford | paris | perth | philadelphia
    | phoenix | pittsburgh | plymouth | portland | prague | quebec | rome | sacramento | salt lake
    city | san diego | san francisco | santiago | seattle | seoul | shanghai | sheffield | singapore
    | stockholm | sydney | tampa | tokyo | toronto | tucson | vancouver | venice | vienna | warsaw |
    washington | wellington | york | zurich
COUNTRY = argentina | australia | austria | belgium | brazil | canada | chile | china | colombia |
    croatia | denmark | egypt | england | finland | france | germany | ghana | greece | hungary |
    iceland | india | indonesia | ireland | israel | italy | jamaica | japan | jordan | kenya |
    malaysia | mexico | morocco | nepal | new zealand | nigeria | norway | pakistan | peru | poland
    | portugal | romania | russia | scotland | south africa | spain | sweden | switzerland |
    thailand | turkey | ukraine | vietnam | wales
STREET = STREETNAME street | STREETNAME street | STREETNAME road | STREETNAME avenue | STREETNAME
    lane | STREETNAME drive | the STREETNAME bridge
STREETNAME = abbey | baker | bridge | broad | castle | cedar | chapel | cherry | chestnut | church |
    elm | factory | forest | garden | green | harbour | high | hill | king | lake | lincoln | main |
    maple | market | mill | north | oak | orchard | park | pine | queen | railway | river | school |
    south | spring | station | sunset | valley | victoria | walnut | water | west | willow | winter
STATION = airport | train station | bus stop | harbour | ferry | stadium | museum | university |
    hospital | town hall | library
PLACE = cathedral | tower | castle | bridge | palace | opera house | parliament | zoo | market |
    lighthouse | old town
SHOP = pharmacy | supermarket | bakery | petrol station | gas station | post office | bank |
    bookshop | hospital | butcher | hardware store | florist | garage | cinema | gym | cafe |
    hairdresser | library | car park | cash machine | laundry
TRANSPORT = train | flight | bus | ferry | coach
MEETING = meeting | lunch | dinner | interview | appointment | phone call | haircut | workshop |
    lesson | presentation | conference | review | party | rehearsal | breakfast | seminar
TASK = take out the trash | water the plants | feed the ANIMAL | buy FOOD | call NAME | pick up NAME
    from school | pay the SPENDING bill | book a TRANSPORT to CITY | return the books | finish the
    report | wash the car | take my medicine | send the invoice to NAME | renew my passport | clean
    the ROOM | charge the phone | print the tickets | walk the dog | fix the THING | pick up the
    parcel | vacuum the ROOM | iron the shirts | sign the contract | back up the computer | answer
    NAME SURNAME | change the battery | collect the dry cleaning | defrost the FOOD | prune the
    roses
THING = lights | lamp | heater | fan | television | radio | speaker | computer | printer | sprinkler
    | oven | coffee machine | kettle | heating | air conditioning | projector | router | humidifier
    | fireplace
APPLIANCE = dishwasher | washing machine | dryer | vacuum cleaner | microwave | toaster | blender |
    freezer | camera | telephone | telescope | bicycle | typewriter | umbrella | calculator
THERMOSTAT = thermostat | heating | ROOM thermostat | oven
SWITCH = on | off
ENTRANCE = front | back | garage | cellar | garden | side | balcony
ROOM = kitchen | bedroom | bathroom | living room | dining room | hallway | office | basement |
    attic | garage | nursery | guest room | garden | laundry room | study | playroom
COLOUR = red | orange | yellow | green | blue | purple | pink | white | warm white | turquoise |
    violet | gold
GENRE = jazz | classical | rock | country | blues | folk | pop | disco | reggae | soul | opera |
    electronic | ambient | swing | gospel | punk | baroque | latin | techno | piano
INSTRUMENT = guitar | piano | violin | trumpet | saxophone | cello | flute | banjo | clarinet |
    trombone | harp | drum
ADJECTIVE = happy | sad | quiet | relaxing | cheerful | favourite | workout | sleepy | romantic |
    summer | christmas | driving | cooking | morning
ALBUM = first | second | latest | newest | live | christmas | acoustic | blue | white
FOOD = milk | bread | butter | cheese | chicken | rice | pasta | salmon | spinach | sugar | flour |
    coffee | tea | yogurt | honey | garlic | ginger | pepper | salt | olive oil | vinegar | mustard
    | ketchup | cereal | oatmeal | chocolate | ice cream | orange juice | tofu | beef | bacon | ham
    | turkey | tuna | shrimp | cabbage | broccoli | celery | cucumber | lettuce | parsley | basil |
    cinnamon | vanilla | pumpkin | asparagus | COUNTABLE | COUNTABLE | COUNTABLE
COUNTABLE = eggs | apples | bananas | oranges | lemons | tomatoes | potatoes | onions | carrots |
    mushrooms | peppers | pears | strawberries | peaches | grapes | cherries | cookies | sausages |
    noodles | beans | lentils | walnuts | almonds | batteries | candles | napkins | avocados |
    muffins
SPENDING = electricity | rent | groceries | water | insurance | internet | clothes | petrol | phone
    | restaurants | gas | books
CUISINE = italian | chinese | indian | mexican | thai | japanese | french | greek | turkish |
    lebanese | vegetarian | korean
LANGUAGE = french | german | spanish | italian | portuguese | russian | chinese | japanese | arabic
    | dutch | swedish | polish | turkish | greek | korean | hindi | danish | norwegian | finnish |
    hungarian
ANIMAL = cat | dog | fish | rabbit | hamster | parrot | horse | elephant | giraffe | lion | tiger |
    penguin | whale | dolphin | kangaroo | crocodile | squirrel | hedgehog | owl | eagle | camel |
    zebra | donkey | goat | sheep | frog | gorilla | leopard | turtle | octopus | cheetah | bear |
    wolf | fox
SPORT = football | basketball | tennis | baseball | hockey | cricket | rugby | golf | cycling |
    boxing | volleyball | marathon | grand prix | world cup | championship
SUBJECT = politics | science | technology | sports | business | health | climate | medicine | space
    | education | fashion | the economy | the election | COUNTRY
WORD = hello | goodbye | thank you | please | excuse me | good morning | beautiful | necessary |
    rhythm | knowledge | conscience | restaurant | receipt | separate | definitely | weird |
    neighbour | tomorrow | breakfast | butterfly | sincerely | parallel | embarrass | calendar |
    lightning | mischief | vacation | bureau | village | freedom
WEATHERVERB = rain | snow | freeze | hail | be sunny | be cloudy | be windy | be foggy | be icy |
    thunder
WARM = warm | cold | hot | humid | windy | dry | wet | chilly | mild
SUN = rise | set
LATENESS = running late | on my way | stuck in traffic | almost there | MINUTES late | at the
    STATION | not coming | at the SHOP
SAYING = i love you | see you soon | happy birthday | good luck | call me back | i can't make it |
    where are you | dinner is ready | congratulations | see you at TIME | sorry | that sounds great
    | the TRANSPORT is late | let's meet at the STATION | i'll be home by TIME | see you on WEEKDAY
    | what do you want for dinner
GREETING = morning | afternoon | evening | night
""",
    "SENTENCE",
)
